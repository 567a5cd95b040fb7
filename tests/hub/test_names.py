# The names of clients and journals. Law: a name is one directory right below the root, and no two pairs
# of names are the same one.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq.errors import HubError
from diskq.hub.names import checked_client, checked_journal, directory_name, parted
from diskq.testing import CrashFS
from tests.hub.rig import messages, put, store

BAD = [
    b"",
    b".",
    b"..",
    b"../../escape",
    b"/etc",
    b"a/b",
    b"a\\b",
    b".hidden",
    b"-option",
    b"a\0b",
    b"a\n",
    b"\n",
    b"a b",
    b"a%s",
    b"\xc3\xa9",
    b"\xff",
    b"x" * 65,
    "\N{DIGIT TWO}\N{ARABIC-INDIC DIGIT TWO}".encode(),
]
GOOD = [b"a", b"_", b"web-1", b"10:4", b"x" * 64, b"A#1"]


@pytest.mark.parametrize("name", BAD, ids=repr)
def test_what_is_no_name_is_refused_and_makes_nothing(name):
    fs = CrashFS()
    hub = store(fs)
    for names in ({"client": name}, {"journal": name}):
        with pytest.raises(HubError, match="is 1 to 64") as refusal:
            put(hub, messages(0, 1), **names)
        assert refusal.value.code == "INVALID_ARGUMENT"
    assert fs.files() == {}


@pytest.mark.parametrize("name", GOOD, ids=repr)
def test_names_that_are_taken(name):
    assert checked_client(name) == checked_journal(name) == name.decode()


def test_a_client_has_no_dot_so_that_two_names_are_never_one():
    # sej keeps "a.b" + "c" and "a" + "b.c" in the same directory.
    assert checked_journal("b.c") == "b.c"
    with pytest.raises(ValueError, match="client id"):
        checked_client("a.b")


names = st.from_regex(r"[A-Za-z0-9_.:#-]{1,20}", fullmatch=True)


@given(names, names)
def test_a_directory_tells_whose_it_is(client, journal):
    try:
        pair = checked_client(client), checked_journal(journal)
    except ValueError:
        return
    assert parted(directory_name(*pair)) == pair


def test_other_directories_belong_to_no_client():
    assert [parted(name) for name in ("plain", ".a", "a.", "a..b", "lost+found.x")] == [None] * 5
