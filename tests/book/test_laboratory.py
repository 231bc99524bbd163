"""The laboratory in a browser: what a reader does to a program, and that the answers are pipelib's.

Pyodide is brought from its registry when the book is built. Where that cannot be reached the page
says so, which is tested too, and the tests in the browser are skipped.
"""

import base64
import json
import re

import pytest
from playwright.sync_api import expect

from pallascope import H200, check, simulate
from pallascope.__main__ import main
from pallascope.editing import FIXED, Expect, Move, Remove, Repeat, edited
from pipelib_book.challenges import CHALLENGES
from pipelib_book.gallery import GALLERY
from pipelib_book.laboratory import subjects
from pipelib_book.laboratory.bench import Bench
from tests.book.conftest import AXE, LOOKS
from tests.pallascope import corpus
from tests.pallascope.strategies import ring as ring_of_six
from tests.pallascope.strategies import where
from tools import challenge_answers, door, sphinx_laboratory

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

PAGE = "book/laboratory.html"
START = 120_000  # milliseconds, on a machine that has other work
SUBJECTS = {subject.name: subject for subject in subjects()}
IN_SLOTS = [subject for subject in SUBJECTS.values() if subject.slots]
FRONT = door.subject()
READING, LOADING = 0, 1  # threads of the ring
OPEN = re.compile("^Open (in )?the ")


@pytest.fixture(scope="session")
def served(site, address):
    """The site with a laboratory that can be opened."""
    if not (site / sphinx_laboratory.FOLDER / "sizes.json").exists():
        pytest.skip("Pyodide could not be brought, so the laboratory is closed: `make book` again.")
    return f"{address}/{PAGE}"


def starting(words):
    """What a text begins with that a reader sees."""
    return re.compile(rf"^\s*{re.escape(words)}")


class Reader:
    """A reader before an open laboratory; each act waits for its answer."""

    def __init__(self, page):
        self.page = page
        page.get_by_role("button", name=OPEN).press("Enter")
        page.locator(".lab-verdict").wait_for(timeout=START)

    def act(self, do):
        before = self.page.locator(".pipelib-laboratory").get_attribute("data-answers")
        do()
        self.page.locator(f'.pipelib-laboratory:not([data-answers="{before}"])').wait_for()
        return self

    def take(self, name):
        return self.act(lambda: self.page.get_by_label("Kernel").select_option(name))

    def choose(self, thread, index):
        self.page.locator(f"#op-{thread}-{index}").click()
        return self

    def press(self, key):
        return self.act(lambda: self.page.keyboard.press(key))

    def click(self, name):
        return self.act(lambda: self.page.get_by_role("button", name=name, exact=True).click())

    @property
    def slots(self):
        return self.page.get_by_role("combobox", name="slots", exact=True)

    def fill(self, label, value):
        def fill():
            self.page.get_by_label(label).fill(value)
            self.page.keyboard.press("Enter")

        return self.act(fill)

    def every_step(self, on):
        self.page.get_by_label("at every step").set_checked(on)
        return self

    def sees(self, program):
        """Whether the page says of a program what the package says."""
        report, timeline = check(program), simulate(program, H200)
        kinds = ", ".join(dict.fromkeys(str(finding.kind) for finding in report)) or "no finding"
        said = self.page.locator(".lab-verdict").inner_text().strip()
        columns = [
            [option.inner_text() for option in column.get_by_role("option").all()]
            for column in self.page.get_by_role("listbox").all()
        ]
        cycles = rf" {round(timeline.cycles):,} cycles(, [\d,]+ before your edits)?\.$"
        assert said.startswith(kinds) and re.search(cycles, said), said
        assert [len(column) for column in columns] == [len(ops) for ops in program.threads]
        return True


def program(name, **slots):
    return SUBJECTS[name].trace(**slots).renamed(SUBJECTS[name].title)


@pytest.fixture
def reader(served, tab):
    return Reader(tab(served))


def test_nothing_of_it_is_loaded_before_it_is_opened(served, tab):
    page = tab(served)
    page.wait_for_load_state("networkidle")
    expect(page.get_by_role("button", name="Open the laboratory")).to_be_visible()
    asked = page.evaluate("performance.getEntriesByType('resource').map(({ name }) => name)")
    assert any(url.endswith("laboratory.js") for url in asked)
    assert not [url for url in asked if "pyodide" in url or "pipelib.zip" in url]


def test_it_opens_with_the_first_kernel(reader):
    (first, *_) = SUBJECTS
    assert reader.sees(program(first))
    assert reader.page.evaluate("document.activeElement.tagName") == "SELECT"


def test_what_is_taken_away_at_every_step_is_missed_and_comes_back(reader):
    ring = program("ring")
    waits = where(ring, READING, "wait")
    reader.take("ring").choose(READING, waits[2]).press("Delete")
    faulty = edited(ring, [Remove(READING, waits)])
    assert not check(faulty).ok and reader.sees(faulty)
    expect(reader.page.get_by_text(check(faulty)[0].remedy).first).to_be_visible()
    assert reader.press("Control+z").sees(ring)
    assert reader.press("Control+y").sees(faulty)
    assert reader.click("Start again").sees(ring)
    assert reader.click("Redo").sees(faulty)


def test_a_file_that_is_dropped_on_an_operation_is_opened_and_moves_nothing(reader):
    ring, other = program("ring"), program("stores")
    reader.take("ring").every_step(False).choose(READING, where(ring, READING, "arrive")[0])
    files = reader.page.evaluate_handle(
        """text => {
          const files = new DataTransfer();
          files.items.add(new File([text], "k.json"));
          return files;
        }""",
        other.to_json(),
    )
    place = reader.page.locator(f"#op-{READING}-{where(ring, READING, 'read')[0]}")
    reader.act(lambda: place.dispatch_event("drop", dict(dataTransfer=files)))
    assert reader.sees(other)


def test_a_button_that_was_clicked_hears_the_keys(reader):
    """But those of a column alone are not the toolbar's."""
    ring = program("ring")
    arrival = where(ring, READING, "arrive")[0]
    reader.take("ring").every_step(False).choose(READING, arrival).click("Earlier")
    reader.press("Alt+ArrowUp")
    assert reader.sees(edited(ring, [Move(READING, (arrival,), -2)]))
    reader.page.keyboard.press("End")
    assert reader.page.evaluate("document.activeElement.textContent") == "Earlier"
    reader.press("Delete")
    assert reader.sees(edited(ring, [Remove(READING, (arrival,))]))


def test_undo_chooses_what_was_chosen(reader):
    ring = program("ring")
    wait = where(ring, READING, "wait")[1]
    selected = reader.page.locator(".ops [aria-selected=true]")
    reader.take("ring").every_step(False).choose(READING, wait)
    text = selected.inner_text()
    reader.press("Delete")
    said = reader.page.locator(".chosen").inner_text()
    assert said.startswith(f"Removed: {text}.") and ring.threads[READING][wait].kind == "wait"
    assert "barrier_wait" in said  # the line of what was removed, not of what follows it
    expect(selected).not_to_have_text(text, use_inner_text=True)
    reader.press("Control+z")
    expect(selected).to_have_text(text, use_inner_text=True)


def test_whoever_leaves_finds_the_state_in_the_address(reader, served, tab):
    ring = program("ring")
    wait = where(ring, READING, "wait")[1]
    assert "#" not in reader.page.url
    reader.take("ring").every_step(False).choose(READING, wait).press("Delete")
    faulty = edited(ring, [Remove(READING, (wait,))])
    assert Reader(tab(reader.page.url)).sees(faulty)
    reader.press("Control+z")
    assert "#" not in reader.page.url


def test_one_operation_alone_moves_earlier_and_later(reader):
    ring = program("ring")
    arrival = where(ring, READING, "arrive")[0]
    reader.take("ring").every_step(False).choose(READING, arrival)
    reader.press("Alt+ArrowUp").press("Alt+ArrowUp").press("Alt+ArrowUp")
    early = edited(ring, [Move(READING, (arrival - n,), -1) for n in range(3)])
    assert not check(early).ok and reader.sees(early)
    for _ in range(3):
        reader.press("Alt+ArrowDown")
    assert reader.sees(ring)


def test_an_operation_is_dragged(reader):
    ring = program("ring")
    arrival, read = where(ring, READING, "arrive")[0], where(ring, READING, "read")[0]
    reader.take("ring").every_step(False)
    held = reader.page.locator(f"#op-{READING}-{arrival}")
    place = reader.page.locator(f"#op-{READING}-{read}")
    for y, after in ((3, 0), (place.bounding_box()["height"] - 3, 1)):
        reader.act(lambda y=y: held.drag_to(place, target_position=dict(x=20, y=y)))
        assert reader.sees(edited(ring, [Move(READING, (arrival,), read + after - arrival)]))
        reader.click("Undo")
    second = reader.page.locator(".ops").nth(READING).locator(".step").nth(1)
    reader.act(lambda: reader.page.locator(f"#op-{READING}-{read}").drag_to(second))
    expect(reader.page.get_by_role("alert")).to_contain_text(
        "does not pass", use_inner_text=True
    )  # so it was tried


def test_the_buttons_do_as_the_keys(reader):
    ring = program("ring")
    load = where(ring, LOADING, "load")[0]
    reader.take("ring").every_step(False).choose(LOADING, load).click("Remove")
    assert reader.sees(edited(ring, [Remove(LOADING, (load,))]))
    reader.click("Undo").choose(LOADING, load).click("Twice").click("Undo").click("Later")
    assert reader.sees(edited(ring, [Move(LOADING, (load,), 1)]))


def test_arrivals_and_the_machine_are_the_reader_s(reader):
    ring = program("ring")
    barrier = next(b for b in ring.barriers if b.name == "free")
    reader.take("ring").fill("free, 2 barriers", "2")
    assert reader.sees(edited(ring, [Expect(barrier.id, 2)]))
    reader.fill("free, 2 barriers", "0")
    expect(reader.page.get_by_role("alert")).to_contain_text(
        "cannot take 0 arrivals", use_inner_text=True
    )
    reader.fill("free, 2 barriers", "1.5")
    expect(reader.page.get_by_role("alert")).to_contain_text(
        "1.5 arrivals cannot be counted", use_inner_text=True
    )
    reader.click("Start again")
    reader.page.get_by_text("The machine", exact=True).click()
    reader.fill("latency of a load, cycles", "5000")
    slow = simulate(ring, H200.changed(hbm_latency_cycles=5000.0))
    expect(reader.page.locator(".lab-verdict")).to_contain_text(
        f"{round(slow.cycles):,} cycles, ", use_inner_text=True
    )
    expect(reader.page.get_by_text("simulated on NVIDIA H200, changed")).to_be_visible()
    assert reader.click("Undo").sees(ring)


def test_the_slots_are_the_reader_s(reader):
    """Each number of them is a program of its own, without the edits of another."""
    slots = reader.take("ring").slots
    assert slots.input_value() == "2" and slots.locator("option").all_inner_texts() == [*"1234"]
    reader.choose(READING, where(program("ring"), READING, "wait")[0]).press("Delete")
    reader.act(lambda: slots.select_option("3"))
    assert reader.sees(program("ring", slots=3))
    expect(reader.take("one-buffer").slots).to_have_count(0)  # not shown


def test_each_number_of_slots_that_a_kernel_has_is_offered(reader):
    """The first is chosen, and the others bring programs of their own."""
    for subject in IN_SLOTS:
        slots = reader.take(subject.name).slots
        assert slots.input_value() == str(subject.slots[0])
        assert slots.locator("option").all_inner_texts() == [*map(str, sorted(subject.slots))]
        assert reader.sees(program(subject.name))
        for number in subject.slots[1:]:
            reader.act(lambda: slots.select_option(str(number)))
            assert reader.sees(program(subject.name, slots=number))


def test_a_challenge_is_about_the_slots_that_its_kernel_begins_with(reader):
    """The reader's choice ends with it, and comes back after it."""
    first = {challenge.subject: challenge.name for challenge in reversed(CHALLENGES)}
    for subject in IN_SLOTS:
        slots = reader.take(subject.name).slots
        reader.act(lambda: slots.select_option(str(subject.slots[-1])))
        reader.act(lambda: reader.page.get_by_label("Challenge").select_option(first[subject.name]))
        assert slots.input_value() == str(subject.slots[0]) and slots.is_disabled()
        assert reader.sees(program(subject.name))
        expect(reader.take(subject.name).slots).to_be_enabled()


def test_a_link_cannot_pose_a_challenge_about_another_program(served, tab):
    """Neither about other slots, in which it may be easier, nor about another kernel."""
    slots = {"subject": "ring", "challenge": "waits-that-can-go", "slots": 4}
    other = {"subject": "ring", "challenge": "from-tile-to-tile", "slots": 4}
    reader = Reader(tab(f"{served}#laboratory={packed(slots)}"))
    assert reader.sees(program("ring")) and reader.slots.input_value() == "2"
    expect(reader.slots).to_be_disabled()
    expect(reader.page.locator(".board")).to_be_visible()
    reader = Reader(tab(f"{served}#laboratory={packed(other)}"))
    assert reader.sees(program("ring", slots=4))
    expect(reader.page.locator(".board")).to_be_hidden()


def packed(state):
    """A state as an address holds it."""
    return base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")


def test_what_stays_cannot_be_taken_away(reader):
    reader.take("ring").choose(READING, 0)
    expect(reader.page.get_by_text("it stays where it is")).to_be_visible()
    expect(reader.page.get_by_role("button", name="Remove", exact=True)).to_be_disabled()


def test_a_fault_is_played(reader):
    ring = program("ring")
    reader.take("ring").choose(READING, where(ring, READING, "wait")[0]).press("Delete")
    button = reader.page.get_by_role("button", name="Play the fault").first
    button.click()
    film = reader.page.locator(".finding .pipelib-player").first
    film.wait_for()
    expect(film.locator(".bar").first).to_be_visible()  # its script has run
    button.click()
    expect(film).to_have_count(0)


def test_the_source_of_an_operation_is_shown(reader):
    ring = program("ring")
    for name in ("one-buffer", "ring"):  # two kernels of one file
        reader.take(name)
    reader.choose(READING, where(ring, READING, "arrive")[0])
    expect(reader.page.locator(".chosen code")).to_have_text(
        "plgpu.barrier_arrive(free.at[slot])", use_inner_text=True
    )


def linked(reader, tab):
    """A reader who opens the link to what another one sees."""
    reader.page.get_by_role("button", name="Link", exact=True).first.click()
    reader.page.wait_for_function("location.hash.startsWith('#laboratory=')")
    return Reader(tab(reader.page.url))


def test_a_link_holds_the_state(reader, tab):
    ring = program("ring")
    waits = where(ring, LOADING, "wait")
    reader.take("ring").choose(LOADING, waits[0]).press("Delete")
    again = linked(reader, tab)
    line = tuple(
        i for i in waits if ring.threads[LOADING][i].line == ring.threads[LOADING][waits[0]].line
    )
    assert again.sees(edited(ring, [Remove(LOADING, line)]))


def test_a_link_holds_the_slots(reader, tab):
    reader.take("ring").act(lambda: reader.slots.select_option("4"))
    assert linked(reader, tab).sees(program("ring", slots=4))


def test_a_reader_s_own_program_is_opened(reader, tmp_path):
    faulty = GALLERY["missing-commit"].program(fixed=False)
    faulty.save(tmp_path / "mine.json")
    reader.act(
        lambda: reader.page.get_by_label("Open a saved program").set_input_files(
            tmp_path / "mine.json"
        )
    )
    assert reader.sees(faulty)
    (tmp_path / "other.json").write_text('{"format": 1}', "utf-8")
    reader.act(
        lambda: reader.page.get_by_label("Open a saved program").set_input_files(
            tmp_path / "other.json"
        )
    )
    expect(reader.page.get_by_role("alert")).to_contain_text(
        "This JSON has format 1", use_inner_text=True
    )
    assert reader.sees(faulty)  # which is still on the bench


def opened(reader, text):
    """A reader who opens a file with this text."""
    file = {"name": "mine.json", "mimeType": "application/json", "buffer": text.encode()}
    return reader.act(
        lambda: reader.page.get_by_label("Open a saved program").set_input_files(files=[file])
    )


def alert(reader):
    return reader.page.locator(".pipelib-laboratory").get_by_role("alert")


def test_a_file_that_is_no_program_changes_nothing(reader):
    """Of a barrier that is not there an earlier verdict said that there is no finding."""
    ring = program("ring")
    fields = json.loads(ring.to_json())
    fields["threads"][0][1]["barrier"] = 77
    opened(reader.take("stores"), json.dumps(fields))
    expect(alert(reader)).to_contain_text("names barrier 77 of 2", use_inner_text=True)
    assert reader.sees(program("stores"))
    assert reader.page.get_by_label("Kernel").input_value() == "stores"


def test_a_file_of_one_s_own_and_its_edits_outlive_a_reload(reader):
    ring = ring_of_six(2, 6)
    opened(reader, ring.to_json()).every_step(False).choose(READING, 0).press("Delete")
    faulty = edited(ring, [Remove(READING, (0,))])
    assert reader.sees(faulty)
    reader.page.reload()
    assert Reader(reader.page).sees(faulty)


def test_what_other_links_of_the_page_do_is_no_loss(reader):
    ring = program("ring")
    wait = where(ring, READING, "wait")[0]
    reader.take("ring").every_step(False).choose(READING, wait).press("Delete")
    reader.page.evaluate("location.hash = '#challenges'")
    reader.page.reload()
    assert Reader(reader.page).sees(edited(ring, [Remove(READING, (wait,))]))


def test_a_link_is_pasted_into_the_open_page(reader):
    ring = program("ring", slots=4)
    wait = where(ring, READING, "wait")[0]
    state = {"subject": "ring", "slots": 4, "edits": [["remove", READING, [wait]]]}
    reader.page.evaluate(f"location.hash = '#laboratory={packed(state)}'")
    expect(reader.page.locator(".lab-verdict")).to_have_class("lab-verdict bad")
    assert reader.sees(edited(ring, [Remove(READING, (wait,))]))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"subject": "ring", "edits": {"map": 1}}, "holds no state of this laboratory"),
        ({"subject": 5}, "holds no state of this laboratory"),
        ([], "holds no state of this laboratory"),
        ({"subject": "ring", "edits": [["move", 0, [3], 0.5]]}, '["move", 0, [3], 0.5] is no edit'),
        ({"subject": "ring", "edits": [["remove", 0, [3]]] * 3000}, "3,000 edits, and 500 are"),
        ({"subject": "ring", "slots": "constructor"}, ""),
        ({"subject": "ring", "slots": {}, "challenge": 7, "strict": "yes"}, ""),
    ],
)
def test_a_link_may_hold_anything(served, tab, state, said):
    reader = Reader(tab(f"{served}#laboratory={packed(state)}"))
    expect(alert(reader)).to_contain_text(said, use_inner_text=True) if said else None
    name = "ring" if isinstance(state, dict) and state.get("subject") == "ring" else ""
    whole = name and "map" not in state.get("edits", ())
    assert reader.sees(program("ring" if whole else next(iter(SUBJECTS))))


def test_what_a_browser_has_kept_may_be_anything(served, tab):
    page = tab(served)
    page.evaluate("localStorage.setItem('pipelib-challenges', '{')")
    page.evaluate("sessionStorage.setItem('pipelib-laboratory ' + location.pathname, '[')")
    page.reload()
    reader = Reader(page)
    assert reader.sees(program(next(iter(SUBJECTS))))
    assert "(0 of" in page.get_by_label("Challenge").inner_text()


# Python never hears the next question.
UNHEARD = """() => {
  const heard = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message) {
    if (message.ask) Worker.prototype.postMessage = heard;
    else heard.call(this, message);
  };
}"""


def test_an_answer_can_be_stopped(reader):
    """What was there before it is still there, and answers."""
    ring = program("ring")
    wait = where(ring, READING, "wait")[0]
    reader.take("ring").every_step(False).page.evaluate(UNHEARD)
    reader.choose(READING, wait).page.keyboard.press("Delete")
    reader.act(reader.page.get_by_role("button", name="Stop", exact=True).click)
    expect(alert(reader)).to_contain_text("Stopped", use_inner_text=True)
    assert reader.sees(ring)
    reader.page.set_default_timeout(START)  # another Python begins
    reader.choose(READING, wait).press("Delete")
    assert reader.sees(edited(ring, [Remove(READING, (wait,))]))


def test_a_letter_may_be_large(reader):
    ring = program("ring")
    fence = where(ring, READING, "fence")[0]
    reader.take("ring").every_step(False).choose(READING, fence).press("Shift+D")
    assert reader.sees(edited(ring, [Repeat(READING, (fence,))]))


def test_presses_that_move_one_operation_are_one_edit(reader):
    """So a challenge of one edit is done by keyboard, whose press is one place."""
    page, link = reader.page, program("link")
    reader.act(lambda: page.get_by_label("Challenge").select_option("before-its-turn"))
    reader.every_step(False).choose(0, where(link, 0, "load")[0])
    for _ in range(2):
        reader.press("Alt+ArrowUp")
    said = "Solved, with 1 edit."
    expect(page.locator(".judged")).to_contain_text(said, use_inner_text=True)


def test_a_start_that_fails_can_be_tried_again(served, tab):
    page = tab(served)
    page.route("**/pyodide.asm.wasm", lambda route: route.abort())
    page.get_by_role("button", name=OPEN).press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("did not start", use_inner_text=True)
    page.unroute("**/pyodide.asm.wasm")
    page.get_by_role("button", name="Try again").click()
    page.locator(".lab-verdict").wait_for(timeout=START)


def test_without_webassembly_it_says_so(served, tab):
    page = tab(served)
    page.evaluate("delete window.WebAssembly")
    page.get_by_role("button", name=OPEN).press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("no WebAssembly", use_inner_text=True)


def test_a_kernel_that_cannot_be_brought_is_not_chosen(reader):
    reader.take("ring").page.route("**/stores.json", lambda route: route.abort())
    reader.take("stores")
    expect(alert(reader)).to_contain_text("Is there a connection?", use_inner_text=True)
    assert reader.page.get_by_label("Kernel").input_value() == "ring"
    assert reader.sees(program("ring"))


def test_a_chapter_s_link_opens_its_first_challenge(served, tab):
    reader = Reader(tab(f"{served}#chapter-8"))
    first = next(each for each in CHALLENGES if each.chapter == 8)
    assert reader.page.get_by_label("Challenge").input_value() == first.name
    assert reader.sees(program(first.subject))


def test_a_challenge_is_solved(reader):
    ring = program("ring")
    page = reader.page
    reader.act(lambda: page.get_by_label("Challenge").select_option("waits-that-can-go"))
    expect(page.locator(".judged")).to_be_hidden()  # before there is anything to judge
    reader.choose(LOADING, where(ring, LOADING, "wait")[0]).press("Alt+ArrowDown")
    expect(page.locator(".judged")).to_contain_text(" It has 0 ops fewer", use_inner_text=True)
    reader.press("Control+z")
    reader.choose(LOADING, where(ring, LOADING, "wait")[0]).press("Delete")
    expect(page.locator(".judged")).to_contain_text("Not yet. The check finds", use_inner_text=True)
    reader.press("Control+z").choose(LOADING, where(ring, LOADING, "wait")[-1]).press("Delete")
    expect(page.locator(".judged")).to_contain_text(
        "Solved, with 1 edit. After the last copy", use_inner_text=True
    )
    page.reload()
    again = Reader(page)
    expect(again.page.get_by_label("Challenge")).to_contain_text("1 of", use_inner_text=True)
    again.take("ring")
    expect(page.locator(".board")).to_be_hidden()
    expect(page.locator(".judged")).to_be_hidden()


def test_a_fault_that_is_asked_for(reader):
    """What a challenge does not ask for is shown first, and at last the fault is as asked."""
    buffer, page = program("one-buffer"), reader.page
    verdict = page.locator(".lab-verdict")
    reader.act(lambda: page.get_by_label("Challenge").select_option("too-early"))
    expect(page.locator(".board")).to_contain_text("One edit is enough", use_inner_text=True)
    reader.choose(0, where(buffer, 0, "wait")[0]).press("Delete")
    expect(page.locator(".finding h3").first).to_have_text(
        starting("barrier-misuse"), use_inner_text=True
    )
    reader.press("Control+z").click("Later")
    expect(verdict).to_have_text(starting("race, as asked."), use_inner_text=True)
    expect(page.locator(".judged")).to_contain_text("Solved", use_inner_text=True)


def test_a_challenge_that_wants_the_strict_check_shows_what_that_finds(reader):
    page, ring = reader.page, program("ring")
    reader.act(lambda: page.get_by_label("Challenge").select_option("released-early"))
    reader.choose(READING, where(ring, READING, "arrive")[0]).press("Alt+ArrowUp")
    expect(reader.page.locator(".lab-verdict")).to_have_text(
        starting("missing-commit"), use_inner_text=True
    )
    expect(page.locator(".finding").first).to_be_visible()
    expect(page.locator(".blamed").first).to_be_attached()
    expect(page.get_by_label("strict check")).to_be_checked()
    expect(page.get_by_label("strict check")).to_be_disabled()
    page.get_by_text("Hint").click()
    expect(page.get_by_text("Move both, at every step.")).to_be_visible()
    assert page.locator(".board a").get_attribute("href") == "08_consumed_barriers.html"


def test_the_next_challenge_is_one_that_is_not_solved(reader):
    page = reader.page
    for challenge in CHALLENGES[:2]:
        reader.click("Next challenge")
        assert page.get_by_label("Challenge").input_value() == challenge.name


def test_the_strict_check_can_be_asked_for(reader):
    ring = program("ring")
    reader.take("ring").choose(READING, where(ring, READING, "fence")[0]).press("Delete")
    faulty = edited(ring, [Remove(READING, where(ring, READING, "fence"))])
    assert check(faulty).ok and reader.sees(faulty)
    reader.act(lambda: reader.page.get_by_label("strict check").check())
    assert not check(faulty, strict=True).ok
    expect(reader.page.locator(".lab-verdict")).to_have_text(
        starting("missing-commit"), use_inner_text=True
    )


def test_what_does_not_move_says_why(reader):
    """And the operation that was chosen stays chosen."""
    ring = program("ring")
    read, compute = where(ring, READING, "read")[0], where(ring, READING, "compute")[0]
    reader.take("ring").every_step(False).choose(READING, read).press("Alt+ArrowDown")
    said = reader.page.get_by_role("alert").inner_text()
    assert "does not pass" in said and "keep their order" in said
    assert reader.sees(ring)
    reader.choose(READING, compute).press("Alt+ArrowDown").press("Alt+ArrowDown")
    expect(reader.page.locator('[aria-selected="true"]')).to_have_text(
        "compute", use_inner_text=True
    )
    reader.press("Control+z")
    expect(reader.page.locator('[aria-selected="true"]')).to_have_text(
        "compute", use_inner_text=True
    )
    expect(reader.page.locator(f"#op-{READING}-{compute + 1}")).to_have_text(
        "compute", use_inner_text=True
    )


def test_a_damaged_link_says_so(served, tab):
    page = tab(f"{served}#laboratory=broken!")
    Reader(page)
    expect(page.get_by_role("alert")).to_contain_text(
        "The address holds no state", use_inner_text=True
    )


def test_a_link_with_slots_that_there_are_not_says_so(served, tab):
    page = tab(f"{served}#laboratory={packed({'subject': 'ring', 'edits': [], 'slots': 99})}")
    assert Reader(page).sees(program("ring"))
    said = "The address asks for 99 slots"
    expect(page.get_by_role("alert")).to_contain_text(said, use_inner_text=True)


@pytest.mark.parametrize("look", LOOKS)
def test_it_is_for_everybody(served, tab, look):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = tab(served, **LOOKS[look])
    reader = Reader(page).take("ring")
    reader.choose(READING, where(program("ring"), READING, "wait")[0]).press("Delete")
    page.get_by_role("button", name="Play the fault").first.click()
    page.locator(".finding .pipelib-player").first.wait_for()
    page.evaluate(axe.axe_script)
    assert page.evaluate(AXE) == []
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


# ---- In place of the front page's player ---------------------------------------------------------


@pytest.fixture
def front(served, tab, address):
    """The front page, with its player at two slots."""
    page = tab(f"{address}/index.html")
    page.wait_for_load_state("networkidle")
    page.locator(PLAYER).get_by_role("slider", name="slots").fill("1")
    return page


PLAYER = ".one-scale > .pipelib-player"


def tile(slots):
    return FRONT.trace(slots).renamed(FRONT.title)


def test_the_front_page_s_player_becomes_a_laboratory_and_comes_back(front):
    """By keyboard, with the slots that the reader chose, and with nothing loaded before."""
    asked = front.evaluate("performance.getEntriesByType('resource').map(({ name }) => name)")
    assert not [url for url in asked if "pyodide" in url or ".json" in url]
    player = front.locator(PLAYER)
    reader = Reader(front)
    assert reader.sees(tile(2))
    expect(player).to_be_hidden()
    assert reader.slots.evaluate("node => node === document.activeElement")
    waits = where(tile(2), 0, "wait")
    front.get_by_role("listbox").focus()
    for _ in range(waits[0]):
        front.keyboard.press("ArrowDown")
    assert reader.press("Delete").sees(edited(tile(2), [Remove(0, waits)]))
    front.get_by_role("button", name="Close").press("Enter")
    expect(player).to_be_visible()
    expect(front.get_by_role("listbox")).to_have_count(0)
    opener = front.get_by_role("button", name=OPEN)
    assert opener.evaluate("node => node === document.activeElement")
    player.get_by_role("slider", name="slots").fill("2")
    reader.act(lambda: opener.press("Enter"))
    assert reader.sees(tile(4))


def test_a_link_to_the_front_page_s_laboratory_holds_its_state(front, tab):
    reader = Reader(front)
    reader.act(lambda: reader.slots.select_option("4"))
    reader.choose(0, where(tile(4), 0, "wgmma_wait")[0]).press("Delete")
    lacking = edited(tile(4), [Remove(0, where(tile(4), 0, "wgmma_wait"))])
    assert reader.sees(lacking) and linked(reader, tab).sees(lacking)


@pytest.mark.parametrize("look", LOOKS)
def test_the_front_page_s_laboratory_is_for_everybody(served, tab, address, look):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = tab(f"{address}/index.html", **LOOKS[look])
    Reader(page).choose(0, where(tile(1), 0, "wait")[0]).press("Delete")
    page.evaluate(axe.axe_script)
    assert page.evaluate(AXE) == []
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


# ---- What the worker says ------------------------------------------------------------------------

ASK = """async ([folder, texts]) => {
  const worker = new Worker(folder + "worker.js");
  const sizes = await (await fetch(folder + "sizes.json")).json();
  const files = Object.fromEntries(Object.keys(sizes).map((name) => [name, folder + name]));
  worker.postMessage({ files: { ...files, bytes: 1 } });
  let last = 0;
  const ask = (what) => new Promise((resolve, reject) => {
    const id = ++last;
    worker.addEventListener("message", function hear({ data }) {
      if (data.failed) reject(new Error(data.failed));
      if (data.id !== id) return;
      worker.removeEventListener("message", hear);
      resolve(data.text);
    });
    worker.postMessage({ id, ...what });
  });
  const found = [];
  for (const text of texts) {
    const refused = await ask({ open: text });
    if (refused) throw new Error(refused);
    const { verdict, findings, cycles, error } = JSON.parse(await ask({ ask: '{"edits": []}' }));
    found.push([verdict, findings?.map(({ cause }) => cause), cycles, error]);
  }
  return found;
}"""


def test_the_page_s_answers_are_the_package_s(served, tab):
    """Of the corpus for Hopper, and of the gallery's kernels with their faults and without."""
    hopper = (kernel for kernel in corpus.clean() if not kernel.name.startswith("blackwell/"))
    programs = [kernel.trace() for kernel in hopper]
    programs += [h.program(fixed=fixed) for h in GALLERY.values() for fixed in (False, True)]
    page = tab(served)
    page.set_default_timeout(0)
    folder = page.url.replace(PAGE, f"{sphinx_laboratory.FOLDER}/")
    answers = page.evaluate(ASK, [folder, [program.to_json() for program in programs]])
    assert len(answers) == len(programs) > 100
    for program, (verdict, causes, cycles, error) in zip(programs, answers, strict=True):
        report = check(program)
        assert error is None and verdict == report.verdict
        assert causes == [finding.cause for finding in report]
        assert cycles == simulate(program, H200).cycles


# ---- Without a browser ---------------------------------------------------------------------------


def test_the_kernels_have_few_operations_and_no_fault_but_those_of_others():
    for subject in subjects():
        for traced in map(subject.trace, subject.slots) if subject.slots else [subject.trace()]:
            assert check(traced).ok == check(traced, strict=True).ok == subject.is_right
            assert sum(map(len, traced.threads)) < 100
            assert "error" not in json.loads(Bench(traced.to_json()).answer('{"edits": []}'))


def test_each_kernel_with_a_ring_offers_slots_and_begins_with_the_first_number():
    without = {subject.name for subject in subjects() if not subject.slots}
    assert without == {"one-buffer", "turns", "queries", "gradients", "last-slot"}
    for subject in IN_SLOTS:
        assert subject.trace(subject.slots[0]) == subject.trace()
        for number in subject.slots:
            slots = next(b for b in subject.trace(number).buffers if b.space == "smem")
            assert slots.shape[0] == number, (subject.name, slots)


def test_a_fault_is_the_same_with_each_number_of_slots():
    for subject in IN_SLOTS:
        kinds = [{finding.kind for finding in check(subject.trace(n))} for n in subject.slots]
        assert kinds == kinds[:1] * len(kinds), subject.name


ALL = slice(None)  # of a line: at every step
TWICE = "twice"
#: An answer to each challenge that no single edit solves, and to later ones: (thread, kind, how far
#: they move, which of the thread's ops of this kind); 0 takes them away, and TWICE does them twice.
ANSWERS = {
    "released-early": [(0, "fence", -1, ALL), (0, "arrive", -1, ALL)],
    "released-early-by-both": [(t, kind, -1, ALL) for t in (0, 1) for kind in ("fence", "arrive")],
    "leaves-too-soon": [(0, "fence", -1, slice(-1, None))],
    "beneath-the-product": [(0, "wgmma_wait", 2, ALL)],
    "from-tile-to-tile": [(1, "load", -1, slice(8, 10))],
    "stores-of-two-tiles": [(0, "wait_store", 0, slice(2))],
    "released-by-one-block": [Expect(2, 1)],
    "the-last-to-leave": [(t, "wait", 0, slice(-2, -1)) for t in (1, 3)],
    "said-too-early": [(0, "arrive", -3, ALL)],
    "gone-too-soon": [(0, "wait_store", -1, slice(-1, None))],
    "held-up": [(0, "arrive", -1, ALL)],
    "waits-for-stores": [(0, "wait_store", 4, ALL)],
    "in-flight": [(0, "wgmma_wait", 0, slice(1, None, 2))],
    "added-in-time": [(1, "load", -2, slice(-1, None))],
    "k-goes-first": [(0, "arrive", -6, slice(1, None, 3)), (1, "arrive", -6, slice(2, None, 3))],
    "turns-guard-nothing": [
        (0, "wait", 0, slice(2, 6, 3)),
        (0, "wait", 0, slice(-1, None)),
        (1, "wait", 0, slice(2, 6, 3)),
        (0, "arrive", 0, slice(0, None, 3)),
        (1, "arrive", 0, slice(2)),
        (1, "arrive", 0, slice(2, 3)),
    ],
    "next-queries": [(0, "arrive", -10, slice(4, None, 5))],
    "before-the-other-operand": [(0, "wgmma", -2, slice(2, None, 4))],
    "two-halves": [(0, "wait_store", 0, slice(1))],
    "one-of-two-halves": [Expect(2, 1)],
    "before-its-turn": [(0, "grid_wait", 2, ALL)],
    "as-jax-has-it": [(0, "fence", 1, ALL)],
    "room-in-time": [(0, "wait", 9, slice(2, None, 3))],
    "said-drained-too-early": [(2, "wait_store", 1, ALL)],
    "the-second-wave": [(1, "wait", -4, slice(-2, None))],
    "nobody-released-it": [
        (0, "arrive", TWICE, slice(1, 2)),
        (0, "arrive", 7, slice(2, 3)),
        (1, "wait", TWICE, slice(1, 2)),
        (1, "wait", 6, slice(2, 3)),
    ],
}
#: What does not solve them, each a list of edits as above.
WRONG = {
    # The fence of a step, which is of no store; and without a fence nothing was moved.
    "leaves-too-soon": ([(0, "fence", 1, slice(1))], [(0, "fence", 0, slice(-1, None))]),
    # Beside the read alone; and the wait behind the release.
    "beneath-the-product": ([(0, "wgmma_wait", 1, ALL)], [(0, "wgmma_wait", 4, ALL)]),
    # One load alone; and a load of slot 1 too.
    "from-tile-to-tile": (
        [(1, "wait", 1, slice(3, 4))], [(1, "wait", 3, slice(3, 4))], [(1, "wait", 0, slice(2, 4))],
    ),
    # No wait before the second write; none at the end; and waits for loads.
    "stores-of-two-tiles": (
        [(0, "wait_store", 0, slice(1, 3))], [(0, "wait_store", 0, slice(1, None, 2))],
        [(1, "wait", 0, slice(-2, None))],
    ),
    # An arrival that never comes, and a copy's barrier, which needs no other.
    "released-by-one-block": ([Expect(2, 3)], [Expect(0, 2)], [(1, "wait", 0, slice(2))]),
    # The waits for the very last release; and all four.
    "the-last-to-leave": (
        [(t, "wait", 0, slice(-1, None)) for t in (1, 3)],
        [(t, "wait", 0, slice(-2, None)) for t in (1, 3)],
    ),
    # Behind the read; before the wait, too; and no read at all.
    "said-too-early": (
        [(0, "arrive", -2, ALL)], [(0, "arrive", -4, ALL)], [(0, "read", 0, ALL)],
    ),
    # Taken away; at every step, which is a race as well.
    "gone-too-soon": (
        [(0, "wait_store", 0, slice(-1, None))], [(0, "commit_group", 1, ALL)],
    ),
    # At one step; and no wait at all.
    "held-up": ([(0, "arrive", -1, slice(1))], [(0, "wait_store", 0, ALL)]),
    # As far as the last challenge; and behind the next write.
    "waits-for-stores": ([(0, "wait_store", 1, ALL)], [(0, "wait_store", 5, ALL)]),
    # The other wait; at one step; and both.
    "in-flight": (
        [(0, "wgmma_wait", 0, slice(0, None, 2))], [(0, "wgmma_wait", 0, slice(1, 2))],
        [(0, "wgmma_wait", 0, ALL)],
    ),
    # Before one wait alone; the waits moved; and the waits taken away.
    "added-in-time": (
        [(1, "wait", 1, slice(-2, None))], [(1, "load", -1, slice(-1, None))],
        [(1, "wait", 0, slice(-2, None))],
    ),
    # By one thread alone; and not before the exponentials.
    "k-goes-first": (
        [(0, "arrive", -6, slice(1, None, 3))],
        [(0, "arrive", -5, slice(1, None, 3)), (1, "arrive", -5, slice(2, None, 3))],
    ),
    # The waits alone; the second thread's waits and their arrivals; and the steps' alone.
    "turns-guard-nothing": (
        [(t, "wait", 0, slice(2, 6, 3)) for t in (0, 1)],
        [(1, "wait", 0, slice(2, 6, 3)), (0, "arrive", 0, slice(0, None, 3))],
        [(t, "wait", 0, slice(2, 6, 3)) for t in (0, 1)]
        + [(0, "arrive", 0, slice(0, None, 3)), (1, "arrive", 0, slice(1, None, 3))],
    ),
    # Before the store's wait alone; and without that wait.
    "next-queries": (
        [(0, "arrive", -1, slice(4, None, 5))], [(0, "wait_store", 0, slice(1))],
    ),
    # Before its own operand's fence; beside the arithmetic; behind the write; the other product;
    # and a fence for both.
    "before-the-other-operand": (
        *([(0, "wgmma", by, slice(2, None, 4))] for by in (-4, -3, -1)),
        [(0, "wgmma", -1, slice(3, None, 4))],
        [(0, "fence", 0, slice(0, None, 2))],
    ),
    # The last wait; and both.
    "two-halves": ([(0, "wait_store", 0, slice(1, None))], [(0, "wait_store", 0, ALL)]),
    # An arrival that never comes, and one of the slots' barriers.
    "one-of-two-halves": ([Expect(2, 3)], [Expect(1, 2)]),
    # Past what lets the next kernel start; and no wait at all.
    "before-its-turn": ([(0, "grid_wait", 1, ALL)], [(0, "grid_wait", 0, ALL)]),
    # Taken away; and before the arithmetic.
    "as-jax-has-it": ([(0, "fence", 0, ALL)], [(0, "fence", -1, ALL)]),
    # By one place; behind the write; taken away; and another wait, that for the tiles.
    "room-in-time": (
        [(0, "wait", -2, slice(0, None, 3))],
        [(0, "wait", 1, slice(2, None, 3))], [(0, "wait", 10, slice(2, None, 3))],
        [(0, "wait", 0, slice(2, None, 3))],
    ),
    # Of the last tile alone, behind which nobody writes; the arrival; and the wait taken away.
    "said-drained-too-early": (
        [(2, "wait_store", 1, slice(-1, None))], [(2, "arrive", -1, ALL)],
        [(2, "wait_store", 0, ALL)],
    ),
    # One of the two; too little; too far, which is a deadlock; and both taken away.
    "the-second-wave": (
        [(1, "wait", -4, slice(-2, -1))], [(1, "wait", -3, slice(-2, None))],
        [(1, "wait", -5, slice(-2, None))], [(1, "wait", 0, slice(-2, None))],
    ),
    # Nothing twice: another read of the sums; a wait for what nobody says; a release before the
    # product's end; and a wait that is too early.
    "nobody-released-it": (
        [(0, "acc_read", -2, ALL)],
        [(1, "wait", TWICE, slice(1, 2)), (1, "wait", 6, slice(2, 3))],
        [(0, "arrive", TWICE, slice(1, 2)), (1, "wait", TWICE, slice(1, 2)),
         (1, "wait", 6, slice(2, 3))],
        [(0, "arrive", TWICE, slice(1, 2)), (0, "arrive", 7, slice(2, 3)),
         (1, "wait", TWICE, slice(1, 2))],
    ),
}  # fmt: skip


def made(program, acts):
    """The edits of a list, and the program after them."""
    edits = []
    for act in acts:
        if isinstance(act, Expect):
            edits.append(act)
        else:
            thread, kind, by, which = act
            indices = where(program, thread, kind)[which]
            assert indices
            once = Move(thread, indices, by) if by else Remove(thread, indices)
            edits.append(Repeat(thread, indices) if by == TWICE else once)
        program = edited(program, edits[-1:])
    return edits, program


def unmet(challenge, acts):
    """What an answer leaves open."""
    traced = SUBJECTS[challenge.subject].trace()
    edits, after = made(traced, acts)
    return challenge.goal.unmet(traced, challenge.goal.check(after), edits)


@pytest.mark.parametrize("challenge", CHALLENGES, ids=lambda challenge: challenge.name)
def test_a_challenge_is_open_and_can_be_solved(challenge):
    traced = SUBJECTS[challenge.subject].trace()
    assert challenge.goal.unmet(traced, challenge.goal.check(traced), []) != []
    if challenge.name in ANSWERS:
        assert unmet(challenge, ANSWERS[challenge.name]) == []
    else:
        counted = {each["name"]: each["singles"] for each in sphinx_laboratory.challenges()}
        assert counted[challenge.name]


@pytest.mark.parametrize("challenge", CHALLENGES, ids=lambda challenge: challenge.name)
def test_a_challenge_is_not_solved_by_what_is_not_asked_for(challenge):
    """Nor by a program without anything in it."""
    traced = SUBJECTS[challenge.subject].trace()
    all_ops = [
        Remove(thread, tuple(i for i, op in enumerate(ops) if op.kind not in FIXED))
        for thread, ops in enumerate(traced.threads)
    ]
    empty = edited(traced, all_ops)
    assert challenge.goal.unmet(traced, challenge.goal.check(empty), all_ops) != []
    for acts in WRONG.get(challenge.name, ()):
        assert unmet(challenge, acts) != [], acts


@pytest.mark.parametrize("challenge", CHALLENGES, ids=lambda challenge: challenge.name)
def test_a_challenge_has_few_ways_to_solve_it(challenge):
    assert sum(challenge_answers.ways(challenge.name)) <= challenge_answers.MOST


def test_the_page_says_in_how_many_ways_one_edit_solves_each():
    counted = {each["name"]: each["singles"] for each in sphinx_laboratory.challenges()}
    assert counted["waits-that-can-go"] == 1 and counted["said-drained-too-early"] == 2
    assert counted["nobody-released-it"] == counted["k-goes-first"] == 0


def test_a_chapter_s_link_to_the_challenges_leads_to_its_own(pages):
    for path, page in pages.items():
        links = page.select('article a[href*="laboratory.html#ch"]')
        number = path.name.partition("_")[0]
        if number.isdigit() and 3 <= int(number) <= 20:
            assert [link["href"].partition("#")[2] for link in links] == [f"chapter-{int(number)}"]


def test_each_chapter_from_3_to_20_has_two_challenges():
    chapters = [challenge.chapter for challenge in CHALLENGES]
    assert chapters == [chapter for chapter in range(3, 21) for _ in range(2)]
    assert {challenge.subject for challenge in CHALLENGES} == {*SUBJECTS}


def test_a_file_opened_from_disk_says_what_to_do(site, tab):
    page = tab((site / PAGE).as_uri())
    if not (site / sphinx_laboratory.FOLDER / "sizes.json").exists():
        pytest.skip("Pyodide could not be brought, so the page says that instead.")
    expect(page.get_by_text("If you opened this page as a file, run")).to_be_visible()
    expect(page.get_by_role("button", name="Open the laboratory")).to_have_count(0)


def test_a_book_built_without_pyodide_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(sphinx_laboratory, "PYODIDE", tmp_path)
    sphinx_laboratory.write(tmp_path / "site")
    assert (tmp_path / "site" / "laboratory.js").exists()
    assert not (tmp_path / "site" / "sizes.json").exists()
    assert "closed in this copy" in sphinx_laboratory.inside(is_here=False)
    assert "closed in this copy" not in sphinx_laboratory.inside(is_here=True)
    small = sphinx_laboratory.element("there", is_here=False, name=FRONT.name)
    assert small.endswith("data-small></div>")  # whose player stays as it is


def test_a_page_of_one_program_needs_no_server(site, tab, tmp_path):
    """As `python -m pallascope lab` writes it."""
    if not (folder := sphinx_laboratory.PYODIDE).exists():
        pytest.skip("Pyodide could not be brought.")
    ring = program("ring")
    ring.save(tmp_path / "ring.json")
    out = tmp_path / "ring.html"
    assert main(["lab", str(tmp_path / "ring.json"), "-o", str(out), "--pyodide", str(folder)]) == 0
    reader = Reader(tab(out.as_uri()))
    assert reader.sees(ring)
    waits = where(ring, READING, "wait")
    reader.choose(READING, waits[0]).press("Delete")
    assert reader.sees(edited(ring, [Remove(READING, waits)]))
