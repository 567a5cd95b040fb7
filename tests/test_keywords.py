# Options as keywords. Law: type checkers, editors and people are told of an option what options.py says.

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import diskq
import diskq.hub
import diskq.keywords
import diskq.options
from scripts.option_keywords import openers, option_classes, options_of, wanted
from tests.language_server import opened_editor
from tests.type_checkers import mypy, pyright

ROOT = Path(__file__).parent.parent

# Each opener and engine, with its class of options, and a call of it but for the options.
CALLS = {
    "open_queue": ("QueueOptions", 'diskq.open_queue("d", "n", {})'),
    "QueueChannel.working": ("QueueWorkOptions", "queue.working({})"),
    "Queue": ("QueueOptions", 'diskq.Queue("d", "n", {})'),
    "QueueWork": ("QueueWorkOptions", "diskq.QueueWork(engine, {})"),
    "open_spool": ("SpoolOptions", 'diskq.open_spool("d", deliver, {})'),
    "Spool": ("SpoolOptions", 'diskq.Spool("d", print, {})'),
    "open_producer": ("StreamOptions", 'diskq.open_producer("d", {})'),
    "open_consumer": ("StreamConsumerOptions", 'diskq.open_consumer("d", {})'),
    "Stream": ("StreamOptions", 'diskq.Stream("d", {})'),
    "StreamReader": ("StreamConsumerOptions", 'diskq.StreamReader("d", {})'),
    "open_journal": ("JournalOptions", 'diskq.open_journal("d", {})'),
    "JournalWriter.open_scanner": ("JournalScannerOptions", "journal.open_scanner({})"),
    "open_scanner": ("JournalScannerOptions", 'diskq.open_scanner("d", {})'),
    "open_shards": ("JournalOptions", 'diskq.open_shards("d", {})'),
    "open_shard_scanner": ("JournalScannerOptions", 'diskq.open_shard_scanner("d", {})'),
    "Journal": ("JournalOptions", 'diskq.Journal("d", {})'),
    "open_priority_store": ("PriorityOptions", 'diskq.open_priority_store("d", {})'),
    "PriorityStore": ("PriorityOptions", 'diskq.PriorityStore("d", {})'),
    "open_table": ("TableOptions", 'diskq.open_table("d", "into", {})'),
    "Table": ("TableOptions", 'diskq.Table("d", "into", {})'),
    "open_hub": ("HubOptions", 'diskq.hub.open_hub("d", {})'),
    "replicate": ("ReplicationOptions", 'await diskq.hub.replicate("d", client, "j", {})'),
}


# What an opener refuses of its class of options: a plain function cannot be interrupted.
REFUSED = {"Spool": {"deliver_timeout"}, "SpoolHandler": {"deliver_timeout"}}


def option_names(name: str) -> list[str]:
    """The options that an opener takes."""
    kind, _ = {**CALLS, **HANDS_ON}[name]
    fields = dataclasses.fields(vars(diskq.options)[kind])
    return [field.name for field in fields if field.name not in REFUSED.get(name, ())]


def misspelt(name: str) -> str:
    return name[:-2] + name[-1]


# What hands its options on as they are: when it runs, they are those of an engine that is tried.
HANDS_ON = {"SpoolHandler": ("SpoolOptions", 'diskq.logging.SpoolHandler("d", print, {})')}


def test_all_that_take_options_are_tried_here() -> None:
    assert {opener.name: (opener.options, set(opener.without)) for opener in openers()} == {
        name: (kind, REFUSED.get(name, set())) for name, (kind, _) in {**CALLS, **HANDS_ON}.items()
    }


def test_what_is_made_of_the_options_is_up_to_date() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in wanted().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert not stale, "run `python -m scripts.option_keywords`"


@pytest.mark.parametrize("kind", option_classes().values(), ids=lambda kind: str(kind.__name__))
def test_a_typed_dictionary_has_the_options_of_its_class_with_their_types(kind: type[Any]) -> None:
    keywords = vars(diskq.keywords)[kind.__name__.replace("Options", "Keywords")]
    types = get_type_hints(kind)
    assert get_type_hints(keywords) == {field.name: types[field.name] for field in dataclasses.fields(kind)}
    assert not keywords.__required_keys__


def called(name: str) -> Any:
    home: Any = diskq.hub if name in diskq.hub.__all__ else diskq
    return functools.reduce(getattr, name.split("."), home)


@pytest.mark.parametrize("name", CALLS)
def test_options_are_a_keyword(name: str) -> None:
    kind, _ = CALLS[name]
    parameter = inspect.signature(called(name)).parameters["options"]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert parameter.annotation == f"{kind} | None"
    assert parameter.default is None


HANDLES: tuple[type[Any], ...] = (
    diskq.QueueChannel,
    diskq.Queue,
    diskq.SpoolChannel,
    diskq.StreamProducer,
    diskq.Stream,
    diskq.JournalWriter,
    diskq.JournalShardWriter,
    diskq.Journal,
    diskq.PriorityQueueChannel,
    diskq.PriorityStore,
)


@pytest.mark.parametrize("kind", HANDLES, ids=lambda kind: str(kind.__name__))
def test_the_durability_of_a_call_is_a_keyword(kind: type[Any]) -> None:
    calls = [value for name, value in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"]
    taken = [each for call in calls if (each := inspect.signature(call).parameters.get("durability"))]
    assert taken
    assert {each.kind for each in taken} == {inspect.Parameter.KEYWORD_ONLY}


# --- when it runs -------------------------------------------------------------------------------------


@pytest.fixture
async def names(tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """What the calls name; nothing of it is asked for anything, as the options are checked first."""
    async with diskq.open_queue(tmp_path, "q") as queue, diskq.open_journal(tmp_path / "j") as journal:
        with diskq.Queue(tmp_path, "e") as engine:
            others = {"client": None, "deliver": deliver, "diskq": diskq}
            yield {"queue": queue, "journal": journal, "engine": engine, **others}


async def deliver(batch: diskq.Batch) -> None: ...


async def call(name: str, option: str, names: dict[str, Any]) -> None:
    _, text = CALLS[name]
    opened = eval(text.removeprefix("await ").format(f"{option}=None"), names)
    if inspect.isawaitable(opened):
        await opened
    if name == "QueueChannel.working":
        async with opened:
            pass


@pytest.mark.parametrize("name", CALLS)
async def test_a_misspelt_option_is_refused_with_the_one_that_was_meant(
    name: str, names: dict[str, Any]
) -> None:
    for option in option_names(name):
        with pytest.raises(TypeError) as refused:
            await call(name, misspelt(option), names)
        expected = f"{name}() has no option {misspelt(option)!r}: did you mean {option!r}?"
        assert str(refused.value) == expected


def test_a_misspelt_argument_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(
        TypeError, match=r"^open_producer\(\) has no option 'takeover': did you mean 'take_over'"
    ):
        diskq.open_producer("d", takeover=True)  # type: ignore[call-arg]


def test_what_resembles_no_option_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(TypeError) as refused:
        diskq.open_scanner("d", colour="red")  # type: ignore[call-arg]
    assert str(refused.value) == (
        "open_scanner() has no option 'colour'; it has autocommit, checkpoint_slice, sync_every, sync_timeout"
    )


@pytest.mark.parametrize("given", ["deliver_timout", "colour"])
def test_what_an_engine_refuses_is_never_the_option_that_was_meant(given: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError) as refused:
        diskq.Spool(tmp_path / "s", print, **dict[str, Any]({given: 1.0}))
    assert "deliver_timeout" not in str(refused.value)


def test_an_option_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^open_queue\(\) has no option 'partition_count'"):
        diskq.open_queue("d", "n", partition_count=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", ["JournalOptions", "PriorityOptions", "QueueOptions", "StreamOptions"])
def test_an_engine_takes_options_one_by_one(kind: str, tmp_path: Path) -> None:
    engines: dict[str, Any] = {
        "JournalOptions": diskq.Journal,
        "PriorityOptions": diskq.PriorityStore,
        "QueueOptions": functools.partial(diskq.Queue, name="q"),
        "StreamOptions": diskq.Stream,
    }
    given = vars(diskq.options)[kind](sync_every=3, durability="synced")
    with engines[kind](tmp_path, options=given, sync_every=7) as opened:
        assert opened.options == dataclasses.replace(given, sync_every=7)


# --- for people ---------------------------------------------------------------------------------------


def documentation(name: str) -> str:
    """What `help` and editors show for a call: the docstring of the constructor, or else of the class.

    An editor takes that of a base's constructor before that of the class.
    """
    of = called(name)
    if not inspect.isclass(of):
        return str(of.__doc__)
    constructors = [vars(base).get("__init__") for base in of.__mro__ if base.__module__.startswith("diskq.")]
    return next((each.__doc__ for each in constructors if each and each.__doc__), str(of.__doc__))


@pytest.mark.parametrize("name", CALLS)
def test_help_and_editors_show_each_option_with_its_default_and_its_sentence(name: str) -> None:
    text = " ".join(documentation(name).split())
    shown = re.findall(r"- `(\w+)=([^`]+)`: ", text)
    kind = vars(diskq.options)[CALLS[name][0]]
    # Defaults are as anybody can write them, with no name that only options.py has.
    assert {option: eval(default, {**vars(diskq)}) for option, default in shown} == {
        option: getattr(kind(), option) for option in option_names(name)
    }
    for option in options_of(kind):
        assert (f"`: {option.text}" in text) == (option.name in option_names(name))


# --- for type checkers --------------------------------------------------------------------------------


NAMES = (
    "import diskq",
    "import diskq.hub",
    "import diskq.logging",
    "",
    "async def deliver(batch: diskq.Batch) -> None: ...",
    "",
    "async def run(",
    "    queue: diskq.QueueChannel, engine: diskq.Queue,",
    "    journal: diskq.JournalWriter, client: diskq.hub.HubClient,",
    ") -> None:",
)
"""The beginning of a program with the names in `CALLS`."""


def program() -> str:
    """Each opener with all its options, with each of them misspelt, and with one that is of another type."""
    lines = [*NAMES, *(f"    {name} = diskq.options.{name}()" for name in option_classes())]
    for name, (kind, text) in {**CALLS, **HANDS_ON}.items():
        names = option_names(name)
        given = [f"{option}={kind}.{option}" for option in names]
        lines += [
            f"    {text.format(', '.join(given))}",
            *(f"    {text.format(f'{misspelt(option)}={kind}.{option}')}  # refused" for option in names),
            f"    {text.format(f'{names[0]}=deliver')}  # refused",
        ]
    return "\n".join([*lines, ""])


def refused_lines(text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# refused")]


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_refuses_a_misspelt_option_and_takes_each_right_one(
    checker: str, tmp_path: Path
) -> None:
    text = program()
    (tmp_path / "program.py").write_text(text, encoding="utf-8")
    found = mypy(tmp_path, "--strict") if checker == "mypy" else pyright(tmp_path, "strict")
    assert [complaint.line for complaint in found] == refused_lines(text), found


# --- for editors --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_editor_shows_each_opener_and_its_options_and_completes_them(tmp_path: Path) -> None:
    """By pyright's language server, which most editors for Python have."""
    calls = {**CALLS, **HANDS_ON}
    lines = [f"    {text.format('')}" for _, text in calls.values()]
    with opened_editor(tmp_path) as editor:
        editor.show("\n".join([*NAMES, *lines, ""]))
        for number, name in enumerate(calls, len(NAMES)):
            line = lines[number - len(NAMES)]
            shown = " ".join(editor.hover(number, line.index("(") - 1).replace("\\", "").split())
            sentence = documentation(name).partition("\n\n")[0] if name in CALLS else ""
            assert " ".join(sentence.split()) in shown, name
            offered = editor.completions(number, line.index(")"))
            signature = editor.signatures(number, line.index(")"))
            for option in option_names(name):
                assert f"- `{option}=" in shown, (name, option)
                assert f"{option}=" in offered, (name, option)
                assert f" {option}: " in signature, (name, option)
