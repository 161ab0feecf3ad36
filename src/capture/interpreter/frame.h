// Frames as the rest of capture sees them: a view of a frame that the interpreter is executing, and
// an image from which a frame can be built anew in the middle of its function. Costs nothing until
// used; an image costs one call's frame. Stands between CPython's frame struct, which only the
// interpreter's own files include, and the recorder and replays, which never see that struct.
#pragma once
#include <Python.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ingot::capture {

class Evaluator;
class Observer;

/// A frame that is being executed by the interpreter in this thread. A cheap value; valid until the
/// frame is left (a hook may use it while it runs; `Session::frames` may be asked again later).
/// Everything it returns is borrowed.
class Frame {
  public:
    explicit Frame(Evaluator* evaluator) : evaluator_(evaluator) {}

    PyCodeObject* code() const;
    PyFunctionObject* function() const;
    PyObject* globals() const;
    PyObject* builtins() const;
    /// The mapping of a class body or of module level code; nullptr in an optimised function.
    PyObject* mapping() const;

    /// Where the current instruction begins, in code units from the start of the code: the place
    /// from which it can be executed again. Prefixes belong to it (EXTENDED_ARG, and for a call
    /// KW_NAMES and PRECALL, whose effects CPython's frame does not hold).
    int offset() const;
    /// The current instruction itself, behind its prefixes, for positions and line numbers.
    int instruction() const;
    int line() const;

    /// Locals, cells and free variables as in `co_localsplusnames`; nullptr where unbound. A cell
    /// variable holds its cell once MAKE_CELL has run.
    std::span<PyObject* const> slots() const;
    /// The value stack, bottom first, *with* the operands of the current instruction: what its
    /// re-execution needs. Entries may be nullptr (the marker below a callable). Use it only in
    /// `Observer::before` and in `Observer::entered`, and for frames further out, which are in the
    /// middle of the instruction that led to the frame inside.
    std::span<PyObject* const> stack() const;

    /// True for the frame of a generator, coroutine or asynchronous generator. It cannot be
    /// rebuilt.
    bool is_generator() const;
    /// Its generator, coroutine or asynchronous generator; nullptr for the frame of a call, and
    /// before the object is made.
    PyObject* generator() const;
    /// True when the frame is the direct work of the current instruction of `caller()`: no C code
    /// stands between, and what the frame returns is what the instruction pushes. Only a chain of
    /// such frames can be rebuilt. (Function and method calls, calls of instances whose class
    /// defines `__call__` in Python.)
    bool is_direct() const;
    /// Of a jump that the truth of a value decides, the current instruction: the truth that leads
    /// straight to a `raise`, through calls and texts but no other decision. Nothing: neither does.
    std::optional<bool> raising_truth() const;
    /// Whether the current instruction stands in a loop of the function.
    bool in_loop() const;
    /// The next frame further out that the same session executes, if there is one.
    std::optional<Frame> caller() const;

    bool operator==(const Frame&) const = default;

  private:
    Evaluator* evaluator_;
};

/// How a rebuilt frame goes on.
enum class Resume : std::uint8_t {
    execute,   ///< the instruction at `offset` is executed, with its operands from `stack`
    complete,  ///< it has been carried out: its operands go, its result is pushed, the next one
               ///< runs
};

/// A frame in the middle of its function, owned: what `Frame` shows, kept. The values may be taken
/// from a live frame or come from a replay's recipes.
struct FrameImage {
    PyFunctionObject* function = nullptr;  ///< strong reference, see the functions below
    int offset = 0;                        ///< as `Frame::offset`
    Resume resume = Resume::execute;
    std::vector<PyObject*> slots;  ///< strong references; size must be that of `co_localsplusnames`
    std::vector<PyObject*> stack;  ///< strong references, as `Frame::stack`

    FrameImage() = default;
    FrameImage(FrameImage&& other) noexcept;
    FrameImage& operator=(FrameImage&& other) noexcept;
    FrameImage(const FrameImage&) = delete;
    FrameImage& operator=(const FrameImage&) = delete;
    ~FrameImage();
    /// Drops all references.
    void clear() noexcept;
    /// Copies a live frame as it stands before its current instruction; for a frame that waits for
    /// one further in, `resume` is to be set to `complete`.
    static FrameImage of(const Frame& frame);
};

/// Whether frames can be rebuilt at this instruction with this way to go on: not in generators, and
/// `complete` only for instructions that pop a known number of operands and push one result
/// (calls, attribute and item reads, operators, `iter`, imports).
bool can_rebuild(PyCodeObject* code, int offset, Resume resume);

/// Builds genuine frames from images, outermost first, and runs them to their end: the innermost
/// one goes on as it says, every other one with the result of the frame inside it (`complete`). An
/// exception that leaves a frame is raised in the next one at its instruction, through its
/// exception table. Returns the result of the outermost, a new reference, or nullptr with the error
/// set. The images are used up.
///
/// `result`: what the innermost frame's instruction pushes when its `resume` is `complete`; a new
/// reference, taken over. nullptr there means that the instruction raised: the Python error must be
/// set and is raised in the innermost frame. Must be nullptr for `execute`.
///
/// Under a `Session` of this thread the frames are executed by the interpreter and observed
/// (`Observer::entered` with `Entry::rebuilt`, outermost first), otherwise CPython runs them.
PyObject* run_frames(std::vector<FrameImage> images, PyObject* result);

}  // namespace ingot::capture
