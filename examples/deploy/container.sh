#!/usr/bin/env bash
# The main process of a container: container.sh OUT ARGUMENTS... runs `gossamer join ARGUMENTS --out OUT`.
#
# A StatefulSet starts a container again when it ends, whatever its exit code. So it stays once the client has finished,
# and only then; OUT/finished remembers that. SIGTERM makes the client leave, SIGHUP makes it read its peers file again.
set -u
out=$1
shift
child=
asked=
trap 'asked=1; [ -z "$child" ] || kill -TERM "$child" 2> /dev/null' TERM
trap '[ -z "$child" ] || kill -HUP "$child" 2> /dev/null' HUP

run() { # run COMMAND...: wait for it; a trap interrupts `wait`
  "$@" &
  child=$!
  [ -z "$asked" ] || kill -TERM "$child" # asked before there was a child
  while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2> /dev/null || break
  done
}

mkdir -p "$out"
if [ ! -e "$out/finished" ]; then
  run gossamer join "$@" --out "$out" > "$out/result"
  cat "$out/result"
  grep -q ' finished after round ' "$out/result" || exit "$code"
  mv "$out/result" "$out/finished"
fi
echo "The client has finished; copy its model from $out, then delete the StatefulSet."
run sleep infinity 2> /dev/null # the shell would say that it was ended
exit 0
