"""BEER with certified steps obeys its proof: at every round, or in the mean over seeds where messages are random."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commands import forked

from gossamer.paper import figures, proofs
from gossamer.paper.figures import Job
from gossamer.paper.omegas import check_records

JOBS = {job.name: job for job in proofs.jobs()}
SHORT = {"proof-a9a": 12, "proof-the": 12}  # rounds, where they take long


def shortened(job: Job) -> Job:
    return Job(job.name, replace(job.spec, rounds=SHORT.get(job.name[:9], 300)))


def test_what_is_run() -> None:
    """Quadratics, a9a and a PL problem, each with a deterministic compressor, and with a random one and 30 seeds."""
    assert len(JOBS) == len({job.folder for job in JOBS.values()}) == 20
    seeds = {job.spec.methods[0]["compressor"]: len(job.spec.seeds) for job in JOBS.values() if not job.spec.batch_size}
    assert seeds == {"top_k:0.5": 1, "gsgd:5": 30}
    assert [job.spec.batch_size for job in JOBS.values() if job.spec.batch_size] == 2 * [1, 10, 100, 1000]
    assert all(job.spec.methods[0]["lr"].startswith("certified") for job in JOBS.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_the_proof_holds(name: str, tmp_path: Path, data_dir: Path) -> None:
    """In full: `gossamer reproduce theory`, whose results are in docs/results/theory.csv."""
    job = shortened(JOBS[name])
    checked = check_records(figures.run(job, tmp_path, data_dir=str(data_dir)))
    assert {finding.name: finding.verdict for finding in checked.findings} == dict.fromkeys(
        (finding.name for finding in checked.findings), "holds"
    )
    assert checked.certificate is not None
    assert checked.certificate.check()
    assert (checked.certificate.mu is None) == (job.spec.problem.get("nonconvex", 0) > 0)
    assert checked.phi is not None
    if job.spec.batch_size is None:
        assert checked.phi[-1] < checked.phi[0]


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    done = forked("reproduce", "theory", "--quick", "--json", "-q", cwd=tmp_path / "work")
    assert done.returncode == 0, done.stderr
    rows, jobs = json.loads(done.stdout), proofs.rehearsals(5)
    assert [row["experiment"] for row in rows] == [job.spec.name for job in jobs]
    assert not any("a9a" in row["experiment"] for row in rows)
    assert {row["verdict"] for row in rows} == {"holds"}
    folder = tmp_path / "work" / "rehearsed-proofs"
    assert len(list((folder / "figures").glob("*.png"))) == len(jobs) == 16
    assert (folder / "theory.csv").read_text().count("holds") == 8 * len(jobs)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--rounds", "3"], "theory takes no --rounds"),
        (["--seeds", "2"], "`seeds` must be"),
        (["-o", "a-file"], "The folder 'a-file' cannot be made"),
    ],
)
def test_mistakes(options: list[str], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a-file").write_text("")
    done = forked("reproduce", "theory", *options, cwd=tmp_path / "work")
    assert done.returncode == 2
    assert sentence in done.stderr
