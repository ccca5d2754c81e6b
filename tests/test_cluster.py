"""Which hosts a word means, and the profile of a cluster; no Slurm is needed. See test_slurm.py."""

from __future__ import annotations

import lockstep
import pytest
from lockstep import LaunchError, Slurm
from lockstep.__main__ import main
from lockstep.launch.cluster import profile
from lockstep.launch.cluster.allocation import CurrentSlurmJob, find


@pytest.fixture(autouse=True)
def no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def be_in_a_job(monkeypatch, nodes: int) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", str(nodes))


def test_without_a_word_it_is_this_host(monkeypatch):
    assert find(None) is find(None, 1) is None
    be_in_a_job(monkeypatch, 2)
    assert find(None) is find(None, 1) is None
    with pytest.raises(LaunchError, match="there is no cluster 'local'; use slurm"):
        find("local", 2)


def test_several_nodes_are_those_of_the_job_that_has_them(monkeypatch):
    with pytest.raises(LaunchError, match=r"asked for \(2\)\. --on slurm gets them from Slurm"):
        find(None, 2)
    be_in_a_job(monkeypatch, 2)
    assert find(None, 2) == find("slurm") == CurrentSlurmJob(nodes=2)
    with pytest.raises(LaunchError, match=r"asked for \(3\), and this Slurm job has 2\."):
        find(None, 3)


def test_a_job_that_has_too_few_asks_for_more(monkeypatch):
    profile.write(Slurm(nodes=4, partition="gpu"))
    be_in_a_job(monkeypatch, 1)  # as a notebook of a hub on the cluster
    assert find("slurm") == Slurm(nodes=4, partition="gpu")
    assert find("slurm", 3) == Slurm(nodes=3, partition="gpu")
    assert find("slurm", 1) == CurrentSlurmJob(nodes=1)


def test_a_lab_takes_nodes_only_where_there_are_some(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "sbatch").touch(0o755)
    assert lockstep.cluster() is None
    profile.write(Slurm(nodes=4, partition="gpu"))
    assert lockstep.cluster(nodes=2) == Slurm(nodes=2, partition="gpu")
    (tmp_path / "sbatch").unlink()  # the profile of another host, which has Slurm
    assert lockstep.cluster() is None
    be_in_a_job(monkeypatch, 2)
    assert lockstep.cluster(nodes=2) == CurrentSlurmJob(nodes=2)


def test_a_profile_comes_back_as_it_was_written():
    assert profile.read() == Slurm()
    said = Slurm(
        partition="gpu", time=90, setup='module load "x"\necho ü', options=("--constraint=h200",)
    )
    profile.write(said)
    assert profile.read() == said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[slurm]\npartitoin = 'x'", "did you mean partition"),
        ("[slurm]\nnodes = 'two'", r"Expected `int`, got `str` - at `\$\.nodes`"),
        ("[slurm]\nnodes = true", "Expected `int`, got `bool`"),
        ("[slurm]\nnodes = 0", "number of nodes must be 1 or more"),
        ("[slrum]\nnodes = 2", "must have one table"),
        ("nodes = ", "cannot be read"),
    ],
)
def test_a_profile_that_is_wrong_says_where(text, why):
    profile.path().parent.mkdir(parents=True, exist_ok=True)
    profile.path().write_text(text)
    with pytest.raises(LaunchError, match=why):
        find("slurm")


def test_no_profile_is_written_before_slurm_has_given_nodes(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["cluster", "init", "--partition", "gpu"]) == 1
    assert capsys.readouterr().out.startswith("there is no Slurm here")
    assert not profile.path().exists()


def test_where_there_is_no_slurm_that_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"no Slurm here: the command sinfo is missing"):
        lockstep.torchrun(abs, -1, on=Slurm())
