// The world outside a recording: which objects came from there, and what was read of them.
//
// The recorder asks World before each read of a container; World finds out whether the container
// came from outside, guards what is going to be read, and makes the value known in turn. What was
// made during the recording is unknown here and needs no guards. What the recording itself wrote is
// remembered as dirty: reads of it are not guarded, and at the segment's end it becomes an effect.
#pragma once
#include <Python.h>

#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capture/guards.h"
#include "capture/recipe.h"
#include "capture/undo.h"

namespace ingot::capture {

/// Something that recording does not understand; the text is the reason of the break.
class Puzzle : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Something that only genuine frames can do: the recording ends right before it, and replays leave
/// the rest of the call to CPython.
class Handover : public Puzzle {
    using Puzzle::Puzzle;
};

/// An operation that has begun and failed, or whose error names what only eager's graph has: the
/// recording ends with eager's tensors, and the operation is carried out on them.
class Eagerly : public Puzzle {
    using Puzzle::Puzzle;
};

/// An object from outside that does something when it goes may go in the operation.
class Departure : public Puzzle {
  public:
    /// `kept`: guards keep it alive.
    Departure(const char* what, bool kept) : Puzzle(what), kept(kept) {}
    bool kept;
};

struct Known {
    std::int32_t node = -1;    // dynamic: its node
    std::int32_t place = -1;   // how it was reached
    std::int32_t tensor = -1;  // a pinned tensor's index
    bool whole = false;        // its contents are guarded completely
    bool dirty = false;        // whole, and since then changed by the recording

    bool dynamic() const { return node >= 0; }
};

/// Tuples that hold a number of its own in the place of an equal item, as long as this lives.
class LentNumbers {
  public:
    LentNumbers() = default;
    LentNumbers(const LentNumbers&) = delete;
    LentNumbers& operator=(const LentNumbers&) = delete;
    ~LentNumbers();
    void lend(PyObject* tuple, Py_ssize_t index, PyObject* number);

  private:
    struct Loan {
        Ref tuple;
        Py_ssize_t index = 0;
        Ref item;  // what was there
        Ref number;
    };
    std::vector<Loan> loans_;
};

/// The tuples among the constants of the code that runs. CPython has one object for all equal
/// constants of a file, so that such a tuple may also come with the call, or be held by something:
/// its items are not replaced, as the code would read a number that changes in a constant's place.
class TupleConstants {
  public:
    /// `met` is told of each tuple that is new.
    void add(PyCodeObject* code, const std::function<void(PyObject*)>& met);
    bool contains(PyObject* tuple) const { return tuples_.contains(tuple); }

  private:
    void add_tuple(PyObject* tuple, const std::function<void(PyObject*)>& met);
    std::unordered_map<PyObject*, Ref> codes_;
    std::unordered_set<PyObject*> tuples_;
};

class World {
  public:
    /// `met` is told of each tensor that becomes known.
    /// `sized` of each that comes with the call, with its node.
    /// `counted` is asked of each int and float that is read from a container, by the way to it
    /// and with what makes a node for it: it gives the object (borrowed) that is to take its place
    /// there, equal but of its own, if the number may be another at the next call; else nullptr.
    using Counted = std::function<PyObject*(PyObject*, const std::string&,
                                            const std::function<std::int32_t()>&)>;
    /// `varied` is asked of each tuple in a pinned container: whether there are others at other
    /// calls, so that it counts as one that comes with the call.
    using Varied = std::function<bool(PyObject*, const std::string&)>;
    World(GuardSet& guards, const TupleConstants& constants,
          std::function<void(PyObject*)> met = {},
          std::function<void(PyObject*, std::int32_t)> sized = {}, Counted counted = {},
          Varied varied = {})
        : guards_(guards),
          constants_(constants),
          met_(std::move(met)),
          sized_(std::move(sized)),
          counted_(std::move(counted)),
          varied_(std::move(varied)) {}
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    /// The way to a part of what is reached by `path`, as `counted` and `varied` are given it.
    static std::string path_within(const std::string& path, Reach reach, Py_ssize_t index,
                                   PyObject* key = nullptr);

    /// A value that comes with the call.
    std::int32_t add_slot(Py_ssize_t index, PyObject* value, const std::string& name);
    /// An object known by its identity.
    void pin(PyObject* object, Place place);
    void pin(PyObject* object, const char* name);

    const Known* find(PyObject* object) const {
        const auto found = known_.find(object);
        return found == known_.end() ? nullptr : &found->second;
    }
    Origin origin_of(PyObject* object) const;

    // ---- reads; call before the read happens. All throw Puzzle. ----
    /// `name` of `owner` as PyObject_GetAttr finds it; nested Python code (properties,
    /// `__getattr__`) reports its own reads.
    /// `plainly`: as `object.__getattribute__` does, whatever the class has.
    void read_attribute(PyObject* owner, PyObject* name, bool plainly = false);
    void read_dict(PyObject* dict, PyObject* key);
    void read_item(PyObject* container, PyObject* key);
    void read_cell(PyObject* cell);
    /// Everything in a container: keys, order, values; `depth` levels of it.
    void read_whole(PyObject* container, int depth = 1);
    /// The attribute of a class that instances see; nullptr if absent.
    PyObject* read_class(PyTypeObject* type, PyObject* name);
    /// That special methods of the object's class stay what they are.
    void read_special_methods(PyObject* object);
    /// A function that C code has found in a class, for an instance of it or for itself.
    void read_special_method(PyTypeObject* type, PyObject* function);
    void read_function(PyObject* function);
    /// What a bound method that comes with the call is bound to; nothing of other objects.
    void read_method(PyObject* method);
    /// `name` of a class, if it is one of its two names; nullptr: both, for a text of the class.
    void read_type_names(PyObject* type, PyObject* name);
    /// A weak reference is asked for its object, which must be known in another way.
    void read_referent(PyObject* reference);
    /// The value of a context variable; `write_variable` before it is set.
    void read_variable(PyObject* variable);
    void write_variable(PyObject* variable);
    /// Whether every context variable that was set has its first value again.
    bool variables_are_back() const;
    /// What is registered with abstract base classes.
    void read_registrations() {
        if (!guards_.registrations) guards_.registrations = registrations();
    }
    /// Which warnings are errors.
    void read_warning_filters();
    /// A call that each replay repeats after the other effects: `callable` and the objects in the
    /// tuple `arguments` are known by their identity.
    void repeat_call(PyObject* callable, PyObject* arguments);
    /// Which tensor of the outside this is decides something: false if it may be another one at
    /// the next call, or was made while recording.
    bool fix_tensor(PyObject* tensor);
    /// A gradient has gone to this leaf: at the next call no hook may wait for it.
    void refuse_hooks(PyObject* leaf);
    /// The attribute `grad` of a tensor; and before it is set.
    /// `first`: to None, and nothing has been computed yet.
    void read_gradient(PyObject* tensor);
    void write_gradient(PyObject* tensor, bool first = false);
    /// What was set to None `first`, before it was written otherwise.
    std::span<const ClearedGradient> cleared_gradients() const { return cleared_; }
    /// The function under functools.lru_cache has given `result`; `names`: a dict or none.
    void read_cached_call(PyObject* callable, PyObject* arguments, PyObject* names,
                          PyObject* result);
    /// Whether two objects are the same decides something.
    void relate(PyObject* a, PyObject* b);

    // ---- iterators that come with the call (world_iterators.cpp) ----
    /// Whether what this one gives can be guarded.
    bool can_move(PyObject* iterator) const;
    /// `next` of it, with numbers of their own in the place of those that change; nothing at its
    /// end.
    Ref move(PyObject* iterator);

    // ---- writes; call before the write happens ----
    /// `deletes`: the key, which is there.
    void write_dict(PyObject* dict, PyObject* key, bool deletes = false);
    void write_attribute(PyObject* owner, PyObject* name, bool deletes = false);
    void write_cell(PyObject* cell);
    /// Something is going to change a list, dict, set or deque by a method. `removes`: it may let
    /// go of what is in there.
    void write_whole(PyObject* container, bool removes = true);

    bool has_writes() const {
        return !written_keys_.empty() || !written_wholes_.empty() || !written_members_.empty() ||
               !repeated_calls_.empty() || !moves_.empty();
    }
    /// What is now in all that has been written.
    void for_each_written(const std::function<void(PyObject*)>& use) const;
    /// What has been written, to be taken back.
    Undo& undo() { return undo_; }
    const Undo& undo() const { return undo_; }
    /// Adds the effects to the recipes, from the state the containers have now.
    void add_effects(RecipeBuilder& builder);
    /// Keeps nothing alive any more: the recording is over, and objects go as they do in eager.
    void let_go();
    /// The objects that hold what was written, for finding promises.
    GuardSet& guards() { return guards_; }

  private:
    using Pair = std::pair<PyObject*, PyObject*>;
    struct PairHash {
        std::size_t operator()(const Pair& p) const {
            return std::hash<const void*>()(p.first) * 31 + std::hash<const void*>()(p.second);
        }
    };

    std::int32_t add_place(Place place);
    std::int32_t add_node(const Known& parent, Reach reach, Py_ssize_t index, PyObject* key,
                          PyObject* value);
    /// The object of its own for a number, or in a pinned container a tuple of them, that changes:
    /// the caller puts it there.
    PyObject* number_in(PyObject* container, const Known& known, Reach reach, Py_ssize_t index,
                        PyObject* key, PyObject* value);
    /// A node for a pinned container, so that what is in it can be one.
    std::int32_t node_of_pinned(PyObject* container, const Known& known);
    void meet(PyObject* value, std::int32_t place, std::int32_t node, std::int32_t tensor);
    /// What a pinned bound method holds as long as it lives, its object and its function; and the
    /// functions of a static method, a class method or a property, which C code calls: their code,
    /// defaults and cells are read as those of any other.
    void meet_held(PyObject* holder, std::int32_t place);
    PinnedRead pinned_read(PyObject* key, PyObject* value, std::int32_t place);
    PinnedDict& pinned_dict(PyObject* dict, const Known& known);
    /// The instance dictionary, known if its owner is; nullptr if there is none.
    PyObject* instance_dict(PyObject* owner);
    void read_member(PyObject* owner, PyObject* descriptor, PyObject* name);
    void read_instance(PyObject* owner, PyObject* name, PyObject* descriptor);
    void read_type_attribute(PyTypeObject* owner, PyObject* name);
    void read_function_attribute(PyObject* function, PyObject* name);
    /// What C code holds of `owner`, which is known by its identity, at a fixed place.
    void read_pointer(PyObject* owner, PyObject* name, PyObject** location);
    /// The keys of a dict before the recording wrote to it, in order, as a tuple.
    Ref first_keys(PyObject* dict) const;
    void read_whole_dict(PyObject* dict, int depth);
    void read_whole_sequence(PyObject* sequence, int depth);
    void read_whole_deque(PyObject* deque, int depth);
    /// What is known of a container, with a node even if it is pinned.
    Known as_dynamic(PyObject* container);
    /// What a `threading.local` holds in this thread, known if the local is; nullptr if it is not.
    PyObject* thread_dict(PyObject* local);
    /// What is changed and comes with the call is no other object that was read.
    void set_changed_apart();
    void read_whole_set(PyObject* set);
    /// Throws Departure if something happens when the object goes, or what a container holds.
    void refuse_finalizer(PyObject* old) const;
    void refuse_finalizers_in(PyObject* container) const;
    bool is_kept_by_guards(PyObject* object) const;
    std::string describe(PyObject* object) const;

    GuardSet& guards_;
    const TupleConstants& constants_;
    std::function<void(PyObject*)> met_;
    std::function<void(PyObject*, std::int32_t)> sized_;
    Counted counted_;
    Varied varied_;
    std::unordered_map<PyObject*, std::string> own_tuples_;  // made here: the ways to them
    std::unordered_map<PyObject*, std::int32_t> pinned_nodes_;
    std::unordered_map<PyObject*, Known> known_;
    std::vector<Ref> held_;
    std::unordered_set<Pair, PairHash> reads_;  // container, key: already guarded
    std::unordered_map<PyObject*, std::size_t> dict_index_, list_index_, type_index_;
    std::unordered_map<PyObject*, PyObject**> locations_;  // of instance dictionaries
    std::unordered_map<PyObject*, Ref> owners_;            // of instance dictionaries
    std::unordered_set<Pair, PairHash> written_, added_;   // added: to a dict without the key
    LentNumbers lent_;
    struct WrittenKey {
        Ref container, key;  // a dict, or a cell without a key
        bool again = false;  // set after it had been deleted: it goes to the end of its dict
    };
    std::vector<WrittenKey> written_keys_;  // in the order in which new keys get into a dict
    std::vector<std::pair<Ref, Ref>> written_members_;  // owner with __slots__, name
    std::vector<Ref> written_wholes_;
    std::vector<ClearedGradient> cleared_;
    std::vector<std::pair<Ref, Ref>> written_variables_;  // and their values before
    std::vector<std::pair<Ref, Ref>> repeated_calls_;     // callable, tuple of arguments
    using Taken = std::unordered_map<PyObject*, Py_ssize_t>;
    /// What `next` would give; `now`: what has been taken beside `taken_`.
    Ref ahead_of(PyObject* iterator, Taken& now);
    Ref part_ahead(PyObject* iterator, Reach reach, Py_ssize_t index, Ref value);
    void add_moves(RecipeBuilder& builder);
    /// What is iterated over is nothing that is written to.
    void set_iterated_apart();
    Taken taken_;  // by the iterators that the segment has moved, each by itself
    std::unordered_map<PyObject*, Ref> iterated_;    // and what they were over
    std::vector<std::pair<Ref, Py_ssize_t>> moves_;  // that the program made, in order
    Undo undo_;
};

}  // namespace ingot::capture
