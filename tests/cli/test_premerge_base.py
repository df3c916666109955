"""What a change is compared with: the commit that is named, or where the branch left the main one."""

import subprocess
from pathlib import Path

import pytest

from kernelpair.changes import RevisionError, base_revision, changed_files


def test_the_base_and_what_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *arguments], check=True)

    git("init", "-q", "-b", "main")
    (tmp_path / "a").write_text("1")
    git("add", "-A")
    git("commit", "-qm", "one")
    (tmp_path / "a").write_text("2")
    (tmp_path / "new").write_text("3")
    (tmp_path / "größe").write_text("4")
    assert changed_files(tmp_path, base_revision(tmp_path, None)) == ["a", "größe", "new"]
    with pytest.raises(RevisionError, match="git knows no revision 'nowhere'"):
        base_revision(tmp_path, "nowhere")


def test_the_branch_that_is_compared_with_is_that_of_the_remote_or_what_many_call_theirs(tmp_path: Path) -> None:
    def git(*arguments: str, folder: Path = tmp_path / "theirs") -> str:
        command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def left(folder: Path) -> str:
        return git("log", "-1", "--format=%s", base_revision(folder, None), folder=folder)

    theirs, clone = tmp_path / "theirs", tmp_path / "clone"
    git("init", "-q", "-b", "trunk", str(theirs), folder=tmp_path)
    git("commit", "-q", "--allow-empty", "-m", "on trunk")
    git("clone", "-q", str(theirs), str(clone), folder=tmp_path)
    git("checkout", "-q", "-b", "master", folder=clone)
    git("commit", "-q", "--allow-empty", "-m", "on master", folder=clone)
    git("checkout", "-q", "-b", "change", folder=clone)
    git("commit", "-q", "--allow-empty", "-m", "a change", folder=clone)
    assert left(clone) == "on trunk"
    git("remote", "remove", "origin", folder=clone)
    assert left(clone) == "on master"
    git("branch", "main", "master~", folder=clone)
    assert left(clone) == "on trunk"


def test_a_shallow_clone_is_told_apart_from_a_repository_without_main(tmp_path: Path) -> None:
    """What a workflow checks out unless it asks for more."""
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    for command in (
        ["init", "-q", "-b", "change", str(whole)],
        ["-C", str(whole), *author, "commit", "-q", "--allow-empty", "-m", "one"],
        ["-C", str(whole), *author, "commit", "-q", "--allow-empty", "-m", "two"],
        ["clone", "-q", "--depth", "1", whole.as_uri(), str(shallow)],
    ):
        subprocess.run(["git", *command], check=True)
    with pytest.raises(RevisionError, match=r"there is no branch main or master: give --base REV$"):
        base_revision(whole, None)
    for wanted in (None, "main"):
        with pytest.raises(RevisionError, match="; this clone is shallow: fetch all of its history"):
            base_revision(shallow, wanted)
