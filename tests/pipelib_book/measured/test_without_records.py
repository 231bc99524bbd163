"""Each reader of records, where there is none: a sentence in place of a table, or nothing."""

import pytest

from pipelib_book.measured import (
    accounts,
    attention,
    bandwidth,
    collective,
    copies,
    decode,
    grouped,
    ladder,
    limits,
    model,
    nvlink,
    probes,
    profile,
    sanitized,
    searches,
)

#: What each sentence begins with, and the tables that say it of no groups.
OF_NO_GROUPS = {
    "(The record of attention has n": [
        attention.errors_table,
        attention.ladder_table,
        attention.lengths_table,
        attention.options_table,
        attention.table,
        attention.turns_table,
        attention.untuned_table,
        attention.variants_table,
        attention.where,
    ],
    "(The record has no part": [
        ladder.emitters_table,
        ladder.ideas_table,
        ladder.ladder_table,
        lambda groups: ladder.rung_row(3, groups),
        ladder.power_table,
        ladder.shapes_table,
        ladder.slots_table,
        ladder.untuned_table,
        ladder.where,
        ladder.winners_table,
    ],
    "(The record of the model has no pair that is far off": [model.causes_table],
    "(A record of the model has no pair": [
        model.families_table,
        model.steps_table,
        model.worst_table,
    ],
    "(The record has no search": [searches.table],
}
#: The same of what reads its record itself.
OF_NO_RECORD = {
    "(The record of attention has no part `accounts`": [
        lambda folders: accounts.table(accounts.group(True, folders)),
        lambda folders: accounts.steps(accounts.group(True, folders), {}),
        lambda folders: accounts.launches(dict(causal=accounts.group(True, folders)), {}),
        lambda folders: accounts.factors(dict(causal=accounts.group(True, folders)), "", ""),
    ],
    "(The record has no copy of 8 x 8": [
        lambda folders: bandwidth.table(bandwidth.record(folders), 8, 8, "float32")
    ],
    "(The record of the machine has no probe of copies": [copies.stores_table],
    "(The record of decoding has no part `decode`: `make benchmark`": [decode.table],
    "(The record has no grouped products": [grouped.summary],
    "(The record has no": [
        limits.clock_table,
        limits.latency_table,
        limits.sharers_table,
        limits.where,
    ],
    "(The record has no ring": [lambda folders: nvlink.beside(1.0, folders)],
    "(A record of": [lambda folders: probes.clocks_table({}, folders)],
    "(The record has no run under compute-sanitizer": [sanitized.sentence],
}
NOTHING = {
    "attention": lambda folders: attention.groups("forward", folders),
    "bandwidth": lambda folders: bandwidth.curve(bandwidth.record(folders)),
    "collective": lambda folders: [*collective.tables(folders), *collective.rows(folders)],
    "grouped": grouped.tables,
    "ladder": lambda folders: ladder.groups("ladder", folders),
    "model": lambda folders: [*model.rows(folders), *model.steps(folders)],
    "profile": lambda folders: profile.ring(None, folders),
    "searches": searches.groups,
    "searches of tiles": ladder.searches,
}


@pytest.mark.parametrize("begin", OF_NO_GROUPS)
def test_a_table_of_no_groups_is_a_sentence(begin):
    found = [table([]) for table in OF_NO_GROUPS[begin]]
    assert [said for said in found if not said.startswith(begin)] == []


@pytest.mark.parametrize("begin", OF_NO_RECORD)
def test_a_table_of_no_record_is_a_sentence(begin, tmp_path):
    found = [table((tmp_path,)) for table in OF_NO_RECORD[begin]]
    assert [said for said in found if not said.startswith(begin)] == []


@pytest.mark.parametrize("name", NOTHING)
def test_there_is_nothing_to_read(name, tmp_path):
    assert not NOTHING[name]((tmp_path,))
