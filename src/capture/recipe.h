// Recipes: how a replay makes the Python objects that a segment leaves behind.
//
// When a segment ends, the objects that live on (what it returns, what its frames hold, what it
// stored into outside objects) are walked once. What came from outside is taken from there, a
// promise becomes an output of the graph, an immutable value stands for itself, and a fresh
// container or plain object is built anew, with its aliases and cycles. An object of any other kind
// has no recipe: NoRecipe is thrown, and the segment cannot be replayed.
//
// A recipe is a flat list of instructions, each filling a register; a replay costs the allocations.
#pragma once
#include <Python.h>

#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/guards.h"
#include "capture/ref.h"

namespace ingot::capture {

/// The object that has no recipe; the text is the reason in one line.
class NoRecipe : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

enum class Make : std::uint8_t {
    Constant,      // `object`
    Node,          // dynamic object `index`
    Tensor,        // pinned tensor `index`, as it is now
    Output,        // output `index` of the graph
    Number,        // integer `index` of those that the sizes' guards compute
    Float,         // float `index` of those that the guards of floats compute
    Nothing,       // no object (an unbound local)
    Tuple,         // of `parts`; `object`: the type
    List,          // empty, of type `object`; filled later
    Dict,          // empty, of type `object`; filled later
    Set,           // of type `object`, filled later
    FrozenSet,     // of `parts`
    PlacedSet,     // like the set or frozenset `object`, with the places of its members
    Slice,         // of three parts
    Method,        // function, self
    Bound,         // attribute `object` of parts[0] (a built-in method)
    Cell,          // empty; filled later
    Function,      // code, globals, closure tuple, defaults, keyword defaults, name, qualname
    Object,        // empty, of type `object`; filled later
    Reduced,       // parts[0](*parts[1]), state parts[2] if given
    DictIterator,  // of type `object` over the dict parts[0], `offset` items on
    Generator,     // by the call of parts[0]; the last arguments by the names in the tuple `object`
    // Filling what is there: register `index`.
    FillList,    // extend a list or deque by parts
    FillDict,    // parts: key, value, ...
    FillSet,     // add parts
    FillCell,    // parts[0]
    FillMember,  // the pointer `offset` bytes into it = parts[0]
    FillVars,    // instance dictionary: parts: key, value, ...
    // Effects on outside objects.
    SetItem,       // dict register index: parts[0] = parts[1]; parts[1] absent: delete
    SetLast,       // likewise, at the end of the dict
    SetAttribute,  // object register index: parts[0] = parts[1] (generic), or delete
    Rewrite,       // list, dict, set or deque register index gets the contents of parts[0], and an
                   // OrderedDict the order of the list parts[1] if given
    Move,          // iterator register index is moved on by the number parts[0]
    Call,          // register index is called with the arguments of the tuple parts[0]
};

struct Instruction {
    Make make;
    std::int32_t index = -1;
    Py_ssize_t offset = 0;
    Ref object;
    std::vector<std::int32_t> parts;
};

struct Recipes {
    std::vector<Instruction> instructions;
    std::vector<std::int32_t> roots;  // registers asked for, in order
    std::size_t effects_from = 0;     // instructions from here on change outside objects

    int traverse(visitproc visit, void* arg) const;
};

/// What the builder asks about an object.
struct Origin {
    enum class Kind : std::uint8_t {
        Fresh,
        Constant,
        Node,
        Tensor,
        Output,
        Number,
        Float,
        Unknown
    } kind;
    std::int32_t index = -1;
    std::string reason;  // of Unknown
};
using OriginOf = std::function<Origin(PyObject*)>;

class RecipeBuilder {
  public:
    explicit RecipeBuilder(OriginOf origin) : origin_(std::move(origin)) {}
    /// The register that will hold `object` (nullptr: Nothing). Throws NoRecipe.
    std::int32_t add(PyObject* object);
    void add_root(PyObject* object) {
        const std::int32_t at = add(object);
        recipes_.roots.push_back(at);
    }
    /// Whether the recipes give this object.
    bool has(PyObject* object) const { return made_.contains(object); }
    void effect(Make make, PyObject* target, std::vector<PyObject*> parts);
    Recipes finish();

  private:
    std::int32_t emit(Instruction i);
    std::int32_t fresh(PyObject* object);
    std::int32_t plain_object(PyObject* object);
    std::int32_t tuple(PyObject* object);
    std::int32_t function(PyObject* object);
    std::int32_t iterator(PyObject* object);
    std::int32_t deque(PyObject* object);
    std::int32_t generator(PyObject* object);
    std::int32_t chain(PyObject* object);
    /// A set or frozenset, empty so far, that takes the places of `set`; none: it cannot be one for
    /// all replays, as these members differ.
    Ref image_of_set(PyObject* set, const std::vector<std::int32_t>& members) const;
    void fill_vars(PyObject* object, std::int32_t at);
    std::vector<std::int32_t> add_pairs(PyObject* dict);

    OriginOf origin_;
    Recipes recipes_;
    std::vector<Instruction> effects_;
    std::unordered_map<PyObject*, std::int32_t> made_;
    std::vector<Ref> held_;
    int depth_ = 0;
};

/// Carries the recipes out. `registers` gets one owned object an instruction (nullptr where there
/// is none). Returns false with the Python error set if something fails.
bool carry_out(const Recipes& recipes, const Values& values, const GuardSet& guards,
               std::span<PyObject* const> outputs, std::vector<Ref>& registers);

}  // namespace ingot::capture
