#!/usr/bin/env bash
# Clients on hosts that are reached by ssh. Every host has Gossamer installed, and keeps its files in ~/gossamer-run.
#
#   ./ssh.sh prepare run.toml alpha beta gamma delta   make a key on each host, copy the peers file and the spec
#   ./ssh.sh start alpha beta gamma delta              start a client on each; also later, where one was lost
#   ./ssh.sh log alpha beta                            the last lines of their logs
#   ./ssh.sh leave beta                                leave on purpose
#   ./ssh.sh reload alpha beta gamma                   copy ./run/peers.toml, and have the clients read it again
set -euo pipefail
here=$(dirname "$0")
port=${PORT:-5555}

copy() { # copy FILE HOST: to the same name there, in one move
  ssh "$2" "cd gossamer-run && cat > '$(basename "$1").new' && mv '$(basename "$1").new' '$(basename "$1")'" < "$1"
}

action=${1:?prepare, start, log, leave or reload}
shift
case $action in
prepare)
  spec=$1
  shift
  for host in "$@"; do # the secret key never leaves its host
    mkdir -p "run/keys/$host"
    ssh -n "$host" 'test -e gossamer-run/key.secret || gossamer keygen gossamer-run > /dev/null; cat gossamer-run/key.public' \
      > "run/keys/$host/key.public"
  done
  "${PYTHON:-python3}" "$here/make_peers.py" run --port "$port" "$@"
  cp "$spec" run/run.toml
  for host in "$@"; do
    copy run/peers.toml "$host"
    copy run/run.toml "$host"
  done
  ;;
start)
  for host in "$@"; do
    ssh -n "$host" "cd gossamer-run && { nohup gossamer join run.toml --peers peers.toml --key key.secret \
      --listen 0.0.0.0:$port --out out > log 2>&1 < /dev/null & echo \$! > pid; }"
  done
  ;;
log)
  for host in "$@"; do
    echo "== $host"
    ssh -n "$host" 'tail -n 5 gossamer-run/log'
  done
  ;;
leave)
  for host in "$@"; do
    ssh -n "$host" 'kill -TERM "$(cat gossamer-run/pid)"'
  done
  ;;
reload)
  for host in "$@"; do
    copy run/peers.toml "$host"
    ssh -n "$host" 'kill -HUP "$(cat gossamer-run/pid)"'
  done
  ;;
*)
  echo "ssh.sh: unknown action '$action'; valid actions: prepare, start, log, leave, reload" >&2
  exit 2
  ;;
esac
