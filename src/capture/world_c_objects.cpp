// Objects of C code that capture looks into (deques, bound methods, the locals of threads,
// functions that keep their results), and which of the objects that are changed are no others; see
// world.h.
#include <cstddef>

#include "capture/interpreter/observer.h"
#include "capture/objects.h"
#include "capture/world.h"

namespace ingot::capture {

Known World::as_dynamic(PyObject* container) {
    Known known = *find(container);
    if (!known.dynamic()) known.node = node_of_pinned(container, known);
    return known;
}

void World::read_whole_deque(PyObject* deque, int depth) {
    const Known* found = find(deque);
    if (found != nullptr && !found->whole && !found->dirty) {
        const Known known = *found;
        for (Py_ssize_t i = 0; i < Py_SIZE(deque); ++i) {
            PyObject* value = item_of_deque(deque, i);
            if (PyObject* own = number_in(deque, known, Reach::Item, i, nullptr, value)) {
                if (PySequence_SetItem(deque, i, own) != 0)
                    throw Puzzle("an item that cannot be set");
            } else {
                add_node(as_dynamic(deque), Reach::Item, i, nullptr, value);
            }
        }
        (void)as_dynamic(deque);  // an empty one has a length, too
        known_[deque].whole = true;
    }
    if (depth <= 1) return;
    for (Py_ssize_t i = 0; i < Py_SIZE(deque); ++i) read_whole(item_of_deque(deque, i), depth - 1);
}

void World::read_method(PyObject* method) {
    const Known* found = PyMethod_Check(method) ? find(method) : nullptr;
    if (found == nullptr || !found->dynamic() || !reads_.insert({method, nullptr}).second) return;
    if (is_tensor(PyMethod_GET_SELF(method))) throw Puzzle("a bound method of a tensor");
    static PyObject* const function = PyUnicode_InternFromString("__func__");
    static PyObject* const self = PyUnicode_InternFromString("__self__");
    const Known known = *found;  // the map may grow
    add_node(known, Reach::Member, offsetof(PyMethodObject, im_func), function,
             PyMethod_GET_FUNCTION(method));
    add_node(known, Reach::Member, offsetof(PyMethodObject, im_self), self,
             PyMethod_GET_SELF(method));
}

void World::read_referent(PyObject* reference) {
    PyObject* object = PyWeakref_GET_OBJECT(reference);
    // One that is dead stays dead; and a guard keeps nothing alive that nothing else does.
    if (find(reference) == nullptr || object == Py_None) return;
    if (find(object) == nullptr) throw Puzzle("an object that is known by a weak reference alone");
    static PyObject* const called = PyUnicode_InternFromString("()");
    if (reads_.insert({reference, called}).second)
        add_node(as_dynamic(reference), Reach::Referent, 0, nullptr, object);
}

PyObject* World::thread_dict(PyObject* local) {
    if (find(local) == nullptr) return nullptr;
    PyObject* dict = nullptr;
    {
        const Quiet quiet;  // the first use in a thread calls `__init__`
        dict = dict_of_thread(local);
    }
    if (dict == nullptr) throw Puzzle("a local of threads that cannot be made");
    if (reads_.insert({local, local}).second)
        add_node(as_dynamic(local), Reach::ThreadDict, 0, nullptr, dict);
    return dict;
}

void World::read_cached_call(PyObject* callable, PyObject* arguments, PyObject* names,
                             PyObject* result) {
    CachedCall call;
    call.callable = Ref::borrow(callable);
    call.arguments = Ref::borrow(arguments);
    call.names = Ref::borrow(names);
    call.place = add_place({-1, Reach::CachedResult, 0, Ref::borrow(callable)});
    call.read = pinned_read(nullptr, result, call.place);
    guards_.cached_calls.push_back(std::move(call));
}

void World::set_changed_apart() {
    std::unordered_set<PyObject*> changed;
    for (const auto& [container, key, again] : written_keys_) changed.insert(container.get());
    for (const auto& [owner, name] : written_members_) changed.insert(owner.get());
    for (const Ref& container : written_wholes_) changed.insert(container.get());
    for (const auto& [iterator, times] : taken_) changed.insert(iterator);
    if (changed.empty()) return;
    static PyObject* const grad = PyUnicode_InternFromString("grad");
    std::vector<ChangedObjects::Container> containers;
    for (const auto& [object, known] : known_) {
        const bool holds = is_tensor(object)
                               ? reads_.contains({object, grad}) || changed.contains(object)
                               : !is_immutable_c_object(object) && !stands_for_itself(object) &&
                                     !PyTuple_Check(object);
        if (holds) containers.push_back({object, known.node, changed.contains(object)});
    }
    guards_.changed = ChangedObjects(containers);
}

}  // namespace ingot::capture
