// Guards: what must hold of the world outside for a segment to be replayed, and how to reach the
// objects it works on.
//
// Two kinds of outside objects. A *pinned* one is known by its identity (modules, functions,
// classes, globals, and what they hold): guards stand on the containers that were read, and as long
// as a container's version (dict version, type version, list contents) is the
// recorded one, nothing below it is looked at. A *dynamic* one comes with the call (arguments and
// what is in them): it is a node, reached by a path from a slot at every call, and checked.
//
// When a pinned container did change, each read of it that was recorded is checked by itself; if
// all still hold, the new version is remembered.
//
// Cost of a check: 1 to 2 ns a pinned container, 5 to 20 ns a node. No Python code runs, but that
// of a function under functools.lru_cache which has forgotten its result and of a `threading.local`
// that is new in a thread, where eager would run it, too.
#pragma once
#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "capture/changed_objects.h"
#include "capture/float_guards.h"
#include "capture/modes.h"
#include "capture/ref.h"
#include "capture/size_guards.h"

namespace ingot::capture {

/// How an object is reached from its parent.
enum class Reach : std::uint8_t {
    Slot,          // slot `index` of the segment
    Constant,      // known by itself
    DictItem,      // parent[key] of a dict
    InstanceDict,  // vars(parent)
    Member,        // a __slots__ member: the pointer at `index` bytes into the parent
    Item,          // parent[index] of a tuple or list
    Contents,      // of a cell
    Lookup,        // attribute `key` of a type
    Itself,        // the parent itself (a second demand on it)
    Variable,      // the value of the context variable `key`
    Gradient,      // of the parent, or of the pinned tensor `index`; None if there is none
    ThreadDict,    // what a `threading.local` holds in the thread that asks
    CachedResult,  // what a function of functools.lru_cache gives
    Referent,      // what a weak reference gives
    Ahead,         // what the iterator is going to give after `index` others (iterators.h)
    AheadKey,      // the key before that, of an iterator over a dict's items
    Moved,         // the `index`-th iterator that this one moves
    Count,         // the number that `enumerate` gives after `index` others
    Iterated,      // what an iterator iterates over
};

/// Where a known object was found, for paths and messages.
struct Place {
    std::int32_t parent = -1;
    Reach reach = Reach::Constant;
    Py_ssize_t index = 0;
    Ref key;
};

enum class Check : std::uint8_t {
    Identity,  // the very object
    Equal,     // same exact type and value
    Type,      // same exact type
    Sized,     // same exact type (tuple, list, deque) and length, and `maxlen` of a deque
    Tensor,    // same Python type and metadata
    Absent,    // nothing is there
    Keys,      // a dict with the keys of the tuple `expected`, in this order
    Members,   // a set with the members of the tuple `expected`, in this order
    Integer,   // any int; which is said by the sizes' relations
    Float,     // any float; which is said by the relations of floats
};

/// What is fixed of a tensor.
struct TensorFacts {
    PyTypeObject* type = nullptr;
    std::vector<std::int64_t> sizes, strides;
    c10::ScalarType dtype = c10::kFloat;
    c10::Device device{c10::kCPU};
    c10::DispatchKeySet keys;
    bool requires_grad = false;
    bool leaf = true;
    bool any_size = false;  // sizes and strides are the SizeGuards' to check
    bool unhooked = false;  // a leaf that got a gradient while recording: no hook of it may run

    static TensorFacts of(PyObject* tensor);
    bool holds(PyObject* tensor) const;
    bool holds_hooks(PyObject* tensor) const;
    /// What is different about `tensor`, in words.
    std::string difference(PyObject* tensor) const;
};

/// What a value must satisfy.
struct Demand {
    Check check = Check::Identity;
    Ref expected;  // the object seen; for Type and Sized its type
    Py_ssize_t length = 0;
    Ref most;  // of a deque: its `maxlen`
    std::unique_ptr<TensorFacts> tensor;

    bool holds(PyObject* value) const;
    std::string difference(PyObject* value) const;
};

/// A dynamic object.
struct Node {
    std::int32_t place = -1;
    std::int32_t parent = -1;  // node; unused for slots
    Reach reach = Reach::Slot;
    Py_ssize_t index = 0;
    PyObject* key = nullptr;  // held by the place
    Demand demand;
};

/// One recorded read of a pinned container.
struct PinnedRead {
    Ref key;
    Demand demand;
    std::int32_t tensor = -1;  // index of the pinned tensor that it yields
};

struct PinnedDict {
    PyObject** location =
        nullptr;  // where the owner holds the dict; nullptr: it is known by itself
    Ref dict, owner;
    std::uint64_t version = 0;
    std::int32_t place = -1;
    std::vector<PinnedRead> reads;
    bool whole = false;    // all keys, in order
    bool ordered = false;  // an OrderedDict: its version does not say that the order is the same
    Ref keys;              // a tuple, if whole
};
struct PinnedList {
    Ref list;
    std::vector<Ref> items;
    std::vector<PinnedRead> reads;  // by item, without keys
    std::int32_t place = -1;
};
struct PinnedType {
    Ref type;
    unsigned version = 0;
    std::vector<std::pair<Ref, Ref>> lookups;  // name, value (nullptr: absent)
};
struct PinnedFunction {
    Ref function, code, defaults, keyword_defaults;
};
/// A cell's contents or a member of an object with __slots__.
struct PinnedPointer {
    PyObject** location = nullptr;
    Ref owner;
    PyObject* current = nullptr;  // held by the demand or the tensor
    PinnedRead read;
    std::int32_t place = -1;
};
struct PinnedTensor {
    Ref tensor;
    TensorFacts facts;
    bool covered = false;    // the program checks it
    bool inspected = false;  // more was read of it than a program checks
    std::int32_t place = -1;
    bool fixed = false;  // which tensor it is decided something
};
/// A call of a function under functools.lru_cache. The guard makes it again, as eager does: whether
/// it is answered from the cache, and by what, is then as in eager.
struct CachedCall {
    Ref callable, arguments, names;  // a tuple; a dict or none
    PinnedRead read;
    std::int32_t place = -1;
};
/// A leaf's `grad` that was set to None before anything was computed.
struct ClearedGradient {
    std::int32_t tensor = -1, leaf = -1;  // the leaf: a pinned tensor or a node
    std::int32_t gradient = -1;           // the node of what was there, if that was read
    PyObject* object = nullptr;           // it, as long as the recording lasts
};
/// Two dynamic objects are the same or not; second may be a pinned object instead.
struct Relation {
    std::int32_t first = -1, second = -1;
    Ref object;
    bool same = false;
};

/// The dynamic objects of one call, held.
class Values {
  public:
    Values() = default;
    Values(const Values&) = delete;
    Values& operator=(const Values&) = delete;
    ~Values() { clear(); }
    void clear() {
        for (PyObject* o : values_) Py_XDECREF(o);
        values_.clear();
        symbols.clear();
        floats.clear();
    }
    std::span<PyObject* const> all() const { return values_; }
    SymbolValues symbols;  // of the sizes
    FloatValues floats;    // all of FloatGuards
    void push(PyObject* borrowed) { values_.push_back(Py_XNewRef(borrowed)); }
    PyObject* operator[](std::size_t node) const { return values_[node]; }

  private:
    c10::SmallVector<PyObject*, 16> values_;
};

class GuardSet {
  public:
    std::vector<Place> places;
    std::vector<Node> nodes;
    std::vector<PinnedDict> dicts;
    std::vector<PinnedList> lists;
    std::vector<PinnedType> types;
    std::vector<PinnedFunction> functions;
    std::vector<PinnedPointer> pointers;
    std::vector<PinnedTensor> tensors;
    std::vector<Relation> relations;
    ChangedObjects changed;
    std::vector<CachedCall> cached_calls;  // made again in this order, once all else holds
    std::optional<unsigned long long> registrations;  // if an abstract base class gave an answer
    Ref warning_filters;                              // a tuple, if a warning was given
    Modes modes;
    FloatGuards floats;  // that change

    /// Whether everything holds for these slots; fills `values` with the nodes' objects. On failure
    /// `failure`, if given, gets the sentence that says what was different.
    bool check(std::span<PyObject* const> slots, Values& values, std::string* failure);
    /// Of symbolic sizes; made by `begin_sizes` if there are any.
    SizeGuards& sizes() { return *sizes_; }
    const SizeGuards* find_sizes() const { return sizes_.get(); }
    void begin_sizes(std::shared_ptr<trace::SymbolicSizes> symbols);
    void drop_sizes() { sizes_.reset(); }
    /// Only the modes are guarded from now on, and nothing is held.
    void drop_all();
    /// A name for a place that is the same in every recording of one list.
    std::string key(std::int32_t place) const;
    /// One sentence a guard.
    std::vector<std::string> sentences() const;
    /// As Python would write it: "x.config['size']".
    std::string path(std::int32_t place) const;
    int traverse(visitproc visit, void* arg) const;

  private:
    std::unique_ptr<SizeGuards> sizes_;
    bool check_pinned(std::string* failure);
    bool recheck(PinnedDict& dict, std::string* failure);
    bool recheck_keys(const PinnedDict& dict, std::string* failure) const;
    bool recheck(PinnedList& list, std::string* failure);
    bool recheck(PinnedType& type, std::string* failure);
    bool recheck(PinnedFunction& function, std::string* failure);
    bool recheck(PinnedPointer& pointer, std::string* failure);
    bool take(PinnedRead& read, PyObject* value);
    bool repeat_cached_calls(std::string* failure);
};

/// The attribute `grad` of a tensor: None where there is none.
Ref gradient_of(PyObject* tensor);
/// The demand a value is met with: `dynamic` ones may be other objects at the next call.
Demand demand_for(PyObject* value, bool dynamic);
/// Whether a value is described by type and value alone (numbers, strings, None, ...).
bool is_plain_constant(PyObject* value);
/// Whether a value is described by its type and what its C code holds, though it may have
/// attributes beside (a NumPy scalar, a slice of numbers, a class derived from int).
bool is_value(PyObject* value);
/// Counts the registrations with abstract base classes.
unsigned long long registrations();
/// The version that guards lookups on a type, 0: none can be had.
unsigned type_version(PyTypeObject* type);

}  // namespace ingot::capture
