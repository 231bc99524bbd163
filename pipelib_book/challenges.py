"""The laboratory's challenges: what should become of a kernel of the page, by chapter.

The model. Each is about what its chapter has explained, and is judged by the checker and the
simulator (`pipelib_book.laboratory.goals`). How many single edits solve it is counted when the
book is built.
"""

from typing import NamedTuple

from pipelib_book.laboratory.goals import Goal


class Challenge(NamedTuple):
    """One challenge.

    Attributes:
      name: as links and browsers keep it.
      chapter: the number of the chapter after which it can be solved.
      title, task: what is asked.
      subject: the kernel's name on the page.
      goal: how it is judged.
      hint: where to look.
      why: shown when it is solved: what the solution shows.
    """

    name: str
    chapter: int
    title: str
    task: str
    subject: str
    goal: Goal
    hint: str
    why: str


CHALLENGES = (
    Challenge(
        "too-early", 3, "Too early",
        "Let the thread read a tile before its copy is sure to have landed: a race, and nothing"
        " else.",
        "one-buffer", Goal(found=("race",), edits=1),
        "The wait must stay: without it nobody waits for that phase, which is a fault of its own."
        " Where may it stand?",
        "A wait orders what comes after it. A read before it may see the copy or not.",
    ),
    Challenge(
        "no-room", 3, "A second copy too soon",
        "Start a copy into the slot though nothing tells TMA, which copies, that the tile has been"
        " read: the strict check should find missing-commit, and nothing else.",
        "one-buffer", Goal(found=("missing-commit",), strict=True, edits=1),
        "What stands between the read of one step and the copy of the next?",
        "`commit_smem` (here: fence) stands between what the lanes have read and the copy that"
        " overwrites it. Without it the order of the lines is not enough.",
    ),
    Challenge(
        "stuck", 4, "Stuck, with nothing taken away",
        "Make the kernel hang: a deadlock, and nothing else. Take nothing away, and do nothing"
        " twice.",
        "ring", Goal(found=("deadlock",), edits=1, by=("move", "expect")),
        "A phase that never gets all of its arrivals is never complete.",
        "Whoever waits for a phase that lacks an arrival waits for ever.",
    ),
    Challenge(
        "one-arrival-too-few", 4, "Counted wrongly",
        "Change one number, and two threads read what a copy is writing over: a race. (Other"
        " findings may come with it.)",
        "two-readers", Goal(found=("race",), only=False, edits=1, by=("expect",)),
        "Each reader arrives once for each slot. How many must have arrived before the next copy?",
        "With one arrival a phase of `free`, the first reader frees the slot for both.",
    ),
    Challenge(
        "nothing-to-wait-for", 5, "Nothing to wait for",
        "A wait for stores that do not exist costs little, and does nothing. Take one of these"
        " waits away, at one step only.",
        "stores", Goal(fewer=1, edits=1, by=("remove",)),
        "`wait_store 1` returns once at most one group of stores is unfinished. How many are there"
        " at the first steps?",
        "Before the first and the second tile at most one store has been started.",
    ),
    Challenge(
        "left-behind", 5, "Left behind",
        "By one move, write a slot that a store may still be reading: a race, and nothing else.",
        "stores", Goal(found=("race",), edits=1, by=("move",)),
        "The wait stands before the write. `commit_group` closes a group: a wait counts groups.",
        "A slot may be written once the store that reads it is known to have read it.",
    ),
    Challenge(
        "refilled", 6, "Refilled under the tensor core",
        "Move one line by one place, so that a copy overwrites a tile that a product still reads: a"
        " race, and nothing else.",
        "product", Goal(found=("race",), edits=1, by=("move",)),
        "What tells the thread that the product before is over?",
        "`wgmma_wait 1` leaves the newest product unfinished. So what is ordered by it is the"
        " product before.",
    ),
    Challenge(
        "waits-of-products", 6, "A wait that protects nothing",
        "Not every wait for a product keeps a tile safe. Take one away, at one step only.",
        "product", Goal(fewer=1, edits=1, by=("remove",)),
        "Which steps load nothing after their wait?",
        "The first step loads nothing, and neither do the last two: no slot is refilled there.",
    ),
    Challenge(
        "no-release", 7, "The slot that never comes back",
        "Two threads must both release a slot. Let one forget it once: a deadlock, and nothing"
        " else.",
        "two-readers",
        Goal(found=("deadlock",), edits=1, by=("remove",), of=("arrive",), once=True),
        "A release is an arrival at `free`.",
        "The phase of `free` lacks one arrival, so the memory thread waits for ever, and soon the"
        " readers do.",
    ),
    Challenge(
        "waits-that-can-go", 7, "Waits that can go",
        "Two waits of the memory thread, which loads, keep nothing from going wrong here. (The"
        " chapter's rule asks for them.) Take both away. The strict check must find nothing.",
        "ring", Goal(fewer=2, edits=2, by=("remove",), of=("wait",)),
        "Which of its waits have no copy after them?",
        "After the last copy nothing is overwritten. The rule is still a good one: a kernel that"
        " goes on to another tile would miss these waits, and JAX's interpreter asks that every"
        " phase be waited for.",
    ),
    Challenge(
        "released-early", 8, "As early as right",
        "A tile is free once it has been read into registers. Release it there, and be 1.015 times"
        " as fast, simulated. The strict check must find nothing.",
        "ring", Goal(faster=1.015, by=("move",)),
        "The release is an arrival, and a fence must stand before it. Move both, at every step.",
        "The next copy starts while the thread still computes.",
    ),
    Challenge(
        "released-early-by-both", 8, "Who lets go last",
        "Two compute threads read each tile. One of them always releases it after the other. Find"
        " out which, let it release the tile as early as is right, and be 1.015 times as fast,"
        " simulated. The strict check must find nothing.",
        "two-readers", Goal(faster=1.015, by=("move",)),
        "Whose arrival completes the phase of `free` that the memory thread waits for? The timeline"
        " shows it. Try one thread, then the other.",
        "A phase of `free` is complete with the later of the two arrivals. An earlier arrival of"
        " the thread that comes first anyway gains nothing.",
    ),
    Challenge(
        "leaves-too-soon", 9, "Out of the registers",
        "The sums of squares live in registers, and need no fence. The result is stored from shared"
        " memory, and needs one. Move one line, so that TMA may read `out` before it sees what the"
        " lanes have written: the check should find missing-commit, and nothing else.",
        "squares", Goal(found=("missing-commit",), edits=1, by=("move",)),
        "Look at the end of the compute thread. What stands between its write and the store?",
        "A carry in registers needs no fence. Once it is in shared memory, `commit_smem` (here:"
        " fence) must stand between the write and the store.",
    ),
    Challenge(
        "beneath-the-product", 9, "Beneath the product",
        "In each step the compute thread waits for its product, and only then adds up the squares."
        " Let it add them up while the product runs, and be 1.1 times as fast, simulated, by moving"
        " only. The strict check must find nothing.",
        "squares", Goal(faster=1.1, by=("move",)),
        "`wgmma_wait 0` may stand later, at every step. What must still come after it?",
        "The tensor core and the lanes may read a tile at the same time. Only the release must come"
        " after both.",
    ),
    Challenge(
        "from-tile-to-tile", 10, "The bubble between two tiles",
        "Before the memory thread loads anything for the second tile, it waits until both slots are"
        " free. Close this bubble: be 1.05 times as fast, simulated, by moving only. The strict"
        " check must find nothing.",
        "two-tiles", Goal(faster=1.05, by=("move",)),
        "Two loads of the second tile need slot 0 only. Move them before the wait for slot 1, or"
        " this wait behind them. (Not at every step.)",
        "The second tile's first loads start while the first tile's last product runs. A chain of"
        " pipelines does the same.",
    ),
    Challenge(
        "stores-of-two-tiles", 10, "Two of these four waits can go",
        "The compute thread waits for stores four times: before each write into `out`, and after"
        " each store. Take two of these waits away. The strict check must find nothing.",
        "two-tiles", Goal(fewer=2, edits=2, by=("remove",), of=("wait_store",)),
        "`out` outlives a tile, as the slots do. It may be written again once the store before has"
        " read it, and the block may end once the last store is done.",
        "One wait must stand between the first store and the second write, and one behind the last"
        " store.",
    ),
    Challenge(
        "released-by-one-block", 11, "Released by one block",
        "Copies of both blocks write each slot, so a slot must be free in both. Change one number,"
        " and a copy overwrites a tile that a block still reads: a race. (Other findings may come"
        " with it. `@1` says that something is block 1's.)",
        "pair", Goal(found=("race",), only=False, edits=1, by=("expect",)),
        "An arrival at `free` arrives in both blocks. How many must there be before the next copy?",
        "With one arrival a phase of `free`, the faster block frees the slot for both.",
    ),
    Challenge(
        "the-last-to-leave", 11, "The last to leave",
        "A block must not end while the other may still arrive at its barriers. So each memory"
        " thread waits for the last release of both slots. Two of these four waits can go. Take"
        " them away. The strict check must find nothing.",
        "pair", Goal(fewer=2, edits=2, by=("remove",), of=("wait",)),
        "Each compute thread releases the two slots one after the other.",
        "Whoever has seen the last release of slot 1 knows that there was one of slot 0. To wait"
        " for every phase is the simpler rule, and JAX's interpreter asks for it.",
    ),
    Challenge(
        "said-too-early", 12, "Released before it was read",
        "An arrival at `free` says: I have read the tile. Let it say so before it is true: a race,"
        " and nothing else, by moving an arrival. No thread hangs, and no barrier is used wrongly.",
        "ring", Goal(found=("race",), edits=3, by=("move",), of=("arrive",)),
        "Which line makes it true? The arrival must stand before it, but behind its own wait.",
        "No wait is longer and no arrival is missing, so most runs give the right result. The last"
        " two arrivals may stand there: no copy comes after them.",
    ),
    Challenge(
        "gone-too-soon", 12, "Gone before the store was done",
        "Without taking anything away, let the block end while TMA may still read its memory:"
        " lost-store, and nothing else. One move is enough.",
        "stores", Goal(found=("lost-store",), edits=1, by=("move",)),
        "`wait_store 0` waits for all groups that were closed before it. (Not at every step.)",
        "When a block ends, another block gets its shared memory. Only the last wait keeps this"
        " memory until the last store has read it, and it waits for groups that are closed before"
        " it, no others.",
    ),
    Challenge(
        "held-up", 13, "Who is held up",
        "The timeline's line \"Bound\" names what a step waits for, one thing after the other, and"
        " then for the first again. One of them holds up the next load, and need not. Move one line"
        " by one place, and be 1.03 times as fast, simulated. The strict check must find nothing.",
        "through", Goal(faster=1.03, edits=1, by=("move",)),
        "The memory thread waits for a release. Must the store be over before it? Move the line at"
        " every step.",
        "The slot is free once its tile has been read. The store reads `out`, not the slot.",
    ),
    Challenge(
        "waits-for-stores", 13, "The same wait, later",
        "The compute thread still waits for each store as soon as it has started it. Let it wait"
        " where the store is nearly over by itself, and be 1.13 times as fast, simulated, by moving"
        " only. The strict check must find nothing.",
        "through", Goal(faster=1.13, by=("move",)),
        "Which line must not come before the store has read `out`? Move the wait down towards it,"
        " at every step.",
        "The store runs while the thread waits for the next tile and reads it. A wait costs only"
        " what is left of the thing that it waits for.",
    ),
    Challenge(
        "in-flight", 14, "A product in flight",
        "In each step a line waits for the newest product, and so the tensor core has nothing to do"
        " until the next one starts. Take this line away, and be 1.04 times as fast, simulated. The"
        " strict check must find nothing.",
        "sum", Goal(fewer=1, faster=1.04, edits=1, by=("remove",), of=("wgmma_wait",)),
        "The thread releases the slot of the step before. Which of the two waits says that this"
        " slot's product is over? Take the other away, at every step.",
        "This is the step from rung 1 to rung 2: when a product ends, the next is queued already.",
    ),
    Challenge(
        "added-in-time", 14, "In time",
        "The tile that is added at the end is loaded last, after waits for slots. So the compute"
        " thread waits for it when all products are over. Load it in time: be 1.2 times as fast,"
        " simulated, by moving its load only. The strict check must find nothing.",
        "sum", Goal(faster=1.2, by=("move",), of=("load",)),
        "`c_smem` is no slot: nobody has used it before, so its load need not wait for a release.",
        "The tile is loaded while the last products run.",
    ),
    Challenge(
        "k-goes-first", 15, "K goes first",
        "In each step both threads release `k_smem` and `v_smem` together, at its end. Let them"
        " release each as soon as they are done with it, and be 1.2 times as fast, simulated, by"
        " moving only. The strict check must find nothing.",
        "turns", Goal(faster=1.2, by=("move",)),
        "Nobody needs `k_smem` once the scores are in registers. Both threads must say so, at every"
        " step: the slot is free when both have.",
        "The next keys are loaded during the exponentials and the product with `v_smem`.",
    ),
    Challenge(
        "turns-guard-nothing", 15, "Turns guard no memory",
        "The compute threads wait for their turns, and give them away: 10 ops. Take them all away."
        " The strict check must find nothing.",
        "turns", Goal(fewer=10, by=("remove",), of=("wait", "arrive")),
        "One thread opens the first turn, and the other waits for the one that is left. Those two"
        " stand outside of the steps. (On the way there are findings.)",
        "A schedule barrier picks one of the orders in which the kernel is right. What it is worth"
        " only a clock can say, and a simulated tensor core is fair by assumption.",
    ),
    Challenge(
        "next-queries", 16, "The next queries",
        "The block loads its second tile of queries when the first tile's result has been stored."
        " Close this gap: be 1.18 times as fast, simulated, by moving only. The strict check must"
        " find nothing.",
        "queries", Goal(faster=1.18, by=("move",)),
        "`arrive on q_out` says that nobody needs these queries any more. Which product is the last"
        " to read them?",
        "The queries are free once the tile's last scores are there. So the next queries and keys"
        " are loaded during the last exponentials, the last product and the store.",
    ),
    Challenge(
        "before-the-other-operand", 16, "Before the other operand",
        "dV needs the probabilities `p_smem`, and dK needs `ds_smem`, which is made of them. The"
        " thread starts both products when both operands are there. Be 1.03 times as fast,"
        " simulated, by moving only. The strict check must find nothing.",
        "gradients", Goal(faster=1.03, by=("move",)),
        "Move the product that reads `p_smem`, at every step. A fence must stand between the write"
        " of its operand and the product. There are three places for it: try each.",
        "The tensor core makes dV while the lanes write dK's operand, so each operand needs a fence"
        " of its own. One place earlier the product runs beside arithmetic too, and gains less:"
        " Hopper's arithmetic is slower beside a product.",
    ),
    Challenge(
        "two-halves", 17, "Two halves, one wait",
        "The result leaves in halves, so that one half is stored while the other is made. But the"
        " thread waits for each store at once. Take one wait away, and be 1.08 times as fast,"
        " simulated. The strict check must find nothing.",
        "gated", Goal(fewer=1, faster=1.08, edits=1, by=("remove",), of=("wait_store",)),
        "The halves are different memory. Which of the two waits keeps the block alive? (Not at"
        " every step.)",
        "The first half's store runs while the second half is read, computed and written. The last"
        " wait waits for both.",
    ),
    Challenge(
        "one-of-two-halves", 17, "One half of two",
        "Make the kernel of the chapter's detective case: change one number, and the thread reads"
        " the half of a gate that may not have landed: a race. (Other findings may come with it.)",
        "gated", Goal(found=("race",), only=False, edits=1, by=("expect",)),
        "Both halves arrive at one barrier. What does it know of them?",
        "With one arrival a phase, a wait returns when either of two copies has landed.",
    ),
    Challenge(
        "before-its-turn", 18, "Before the other kernel has ended",
        "`grid_wait` is `plgpu.griddepcontrol_wait`. Let the kernel load what the kernel before it"
        " may not have written yet: a race, and nothing else, by one move.",
        "link", Goal(found=("race",), edits=1, by=("move",), of=("grid_wait", "load")),
        "A move can go further than one place, also by dragging. (Not at every step.)",
        "What stands before the wait may run while the kernel before still writes. Barriers and"
        " scratch may be there, but no load of what that kernel wrote.",
    ),
    Challenge(
        "as-jax-has-it", 18, "As JAX's emitter has it",
        "JAX's warp-specialized emitter frees a slot before the fence that would serve its next"
        " load. Make this kernel like that, by one move: the strict check should find"
        " missing-commit, and nothing else.",
        "ring", Goal(found=("missing-commit",), strict=True, edits=1, by=("move",)),
        "Which two lines must change places?",
        "The release says that the slot has been read. Only a fence before it says so to the copy"
        " engine, by PTX's letter. The plain check is content.",
    ),
    Challenge(
        "room-in-time", 19, "Room, when it is needed",
        "The compute thread waits for `drained` before a tile's products: on Blackwell, where these"
        " write into the memory that is drained, it must. Here the sums are in registers until"
        " `out` is written. Be 1.05 times as fast, simulated, by moving only. The strict check must"
        " find nothing.",
        "stored-apart", Goal(faster=1.05, by=("move",), on=("drained",)),
        "Move the wait for `drained` down towards the write, for each tile but the first.",
        "Products run while the tile before is stored. On Blackwell it takes a second accumulator"
        " in tensor memory to get there.",
    ),
    Challenge(
        "said-drained-too-early", 19, "Drained, it says",
        "Let the thread that stores say `drained` before that is true: a race, and nothing else, by"
        " moving its wait.",
        "stored-apart", Goal(found=("race",), edits=1, by=("move",), of=("wait_store",)),
        "Move a wait. Which line says that a store that has been started is over?",
        "A store reads later than it is started, as `async_load_tmem` does on Blackwell. There"
        " `wait_load_tmem` must stand before the arrival, here `wait_store`.",
    ),
    Challenge(
        "the-second-wave", 20, "The second wave",
        "This is the fault of a pass of the tilelang compiler, made small: right with a block for"
        " each row, wrong where a block has a second one. Mend it by moving waits of the memory"
        " thread. The strict check must find nothing.",
        "second-wave", Goal(by=("move",), of=("wait",)),
        "The second row's first loads ask nobody whether their slots are free. Which two waits"
        " stand where they protect nothing?",
        "No slot is new but in the block's first row. A test with a block for each row does not"
        " come to the second.",
    ),
    Challenge(
        "nobody-released-it", 20, "The slot that nobody released",
        "This is the fault of JAX's emitter, made small: a tile's last slot is never released, and"
        " the next tile's loads do not ask. Mend it, by doing lines twice and moving them. The"
        " strict check must find nothing.",
        "last-slot",
        Goal(by=("repeat", "move"), of=("arrive", "wait"), needs=("repeat",)),
        "Two lines are missing: thread 0's arrival at `consumed[1]` when the first tile is done,"
        " and the memory thread's wait for it, before it loads into slot 1. Do a line of this kind"
        " twice, not at every step, and move the second to its place. What makes the product's end"
        " sure?",
        "Slots that outlive a tile need a release for each step, also for a tile's last. (The last"
        " tile's last slot needs none: nobody loads into it again.)",
    ),
)  # fmt: skip
