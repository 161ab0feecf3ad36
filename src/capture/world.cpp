// Reads of outside containers become guards here; see world.h.
#include "capture/world.h"

#include <structmember.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>

#include "capture/departing.h"
#include "capture/dict_version.h"
#include "capture/guard_text.h"
#include "capture/keys.h"
#include "capture/objects.h"
#include "trace/recorder.h"

namespace ingot::capture {
namespace {

void refuse_special_tensor(PyObject* tensor) {
    if (!THPVariable_CheckExact(tensor))
        throw Puzzle(std::string("a tensor of the subclass ") + Py_TYPE(tensor)->tp_name);
    const at::Tensor& t = THPVariable_Unpack(tensor);
    if (t.layout() != c10::kStrided || t.is_nested() || t.is_quantized())
        throw Puzzle("a tensor that is sparse, nested or quantised");
    // What torch.func.vjp's function closes over: wrappers whose transform is over, the history
    // inside.
    constexpr c10::DispatchKeySet kWrapped({c10::DispatchKey::FuncTorchBatched,
                                            c10::DispatchKey::FuncTorchGradWrapper,
                                            c10::DispatchKey::Functionalize});
    if (t.key_set().has_any(kWrapped)) throw Puzzle("a tensor of a transform that is over");
}

/// What stands now at an address within `owner`.
PinnedPointer pinned_pointer(PyObject* owner, PyObject** location, std::int32_t place,
                             PinnedRead read) {
    PinnedPointer p;
    p.location = location;
    p.owner = Ref::borrow(owner);
    p.current = *location;
    p.place = place;
    p.read = std::move(read);
    return p;
}

/// Whether another object of the kind may stand in its place at other calls, and do: a container,
/// an object of a class of the program's, a tensor of other sizes.
bool may_be_replaced(PyObject* value) {
    if (value == nullptr) return false;
    if (PyTuple_CheckExact(value) || PyList_CheckExact(value) || PyDict_CheckExact(value))
        return !is_tuple_of_numbers(value);
    if (is_tensor(value)) return THPVariable_CheckExact(value);
    return is_python_class(Py_TYPE(value)) && has_python_layout(Py_TYPE(value)) &&
           !PyType_Check(value) && !stands_for_itself(value);
}

}  // namespace

std::string World::describe(PyObject* object) const {
    const Known* k = find(object);
    std::string type = std::string("an object of type ") + Py_TYPE(object)->tp_name;
    return k == nullptr ? type : guards_.path(k->place) + " (" + type + ")";
}

std::int32_t World::add_place(Place place) {
    guards_.places.push_back(std::move(place));
    return static_cast<std::int32_t>(guards_.places.size()) - 1;
}

void World::pin(PyObject* object, Place place) {
    meet(object, add_place(std::move(place)), -1, -1);
}

void World::pin(PyObject* object, const char* name) {
    if (find(object) != nullptr) return;
    pin(object, Place{-1, Reach::Constant, 0, Ref::steal(PyUnicode_FromString(name))});
}

void World::meet(PyObject* value, std::int32_t place, std::int32_t node, std::int32_t tensor) {
    if (value == nullptr || is_plain_constant(value)) return;
    const auto [it, fresh] = known_.try_emplace(value, Known{node, place, tensor});
    if (fresh) {
        held_.push_back(Ref::borrow(value));
        if (met_ && is_tensor(value)) met_(value);
        if (node < 0) meet_held(value, place);
        return;
    }
    const Known& old = it->second;
    if (old.dynamic() && node >= 0 && old.node != node)
        guards_.relations.push_back({old.node, node, {}, true});
    else if (old.dynamic() && node < 0)
        guards_.relations.push_back({old.node, -1, Ref::borrow(value), true});
    else if (!old.dynamic() && node >= 0) {
        fix_tensor(value);
        guards_.relations.push_back({node, -1, Ref::borrow(value), true});
    }
}

void World::meet_held(PyObject* holder, std::int32_t place) {
    const auto meet_as = [&](PyObject* held, const char* name) {
        meet(held, add_place({place, Reach::Lookup, 0, Ref::steal(PyUnicode_FromString(name))}), -1,
             -1);
    };
    PyObject* self = nullptr;
    if (PyMethod_Check(holder)) {
        self = PyMethod_GET_SELF(holder);
        meet_as(PyMethod_GET_FUNCTION(holder), "__func__");
    } else if (PyCFunction_Check(holder)) {
        self = PyCFunction_GET_SELF(holder);
    }
    const auto meet_function = [&](const char* name) {
        const Ref held = Ref::steal(PyObject_GetAttrString(holder, name));
        if (held && PyFunction_Check(held.get())) meet_as(held.get(), name);
    };
    if (Py_IS_TYPE(holder, &PyStaticMethod_Type) || Py_IS_TYPE(holder, &PyClassMethod_Type))
        meet_function("__func__");
    if (Py_IS_TYPE(holder, &PyProperty_Type))
        for (const char* name : {"fget", "fset", "fdel"}) meet_function(name);
    if (self == nullptr) return;
    if (is_tensor(self)) throw Puzzle("a bound method of a tensor");
    meet_as(self, "__self__");
}

std::int32_t World::add_node(const Known& parent, Reach reach, Py_ssize_t index, PyObject* key,
                             PyObject* value) {
    const bool itself = value != nullptr && stands_for_itself(value);
    Node node;
    node.place = add_place({parent.place, reach, index, Ref::borrow(key)});
    node.parent = parent.node;
    node.reach = reach;
    node.index = index;
    node.key = key;
    node.demand = demand_for(value, !itself);
    guards_.nodes.push_back(std::move(node));
    const auto number = static_cast<std::int32_t>(guards_.nodes.size()) - 1;
    meet(value, guards_.nodes.back().place, itself ? -1 : number, -1);
    if (is_tensor(value)) {
        refuse_special_tensor(value);
        if (sized_) sized_(value, number);
    }
    return number;
}

std::int32_t World::add_slot(Py_ssize_t index, PyObject* value, const std::string& name) {
    Ref key = name.empty() ? Ref() : Ref::steal(PyUnicode_FromString(name.c_str()));
    return add_node(Known{}, Reach::Slot, index, key.get(), value);
}

std::int32_t World::node_of_pinned(PyObject* container, const Known& known) {
    if (const auto found = pinned_nodes_.find(container); found != pinned_nodes_.end())
        return found->second;
    Node node;
    if (const auto owner = owners_.find(container); owner != owners_.end()) {
        // Its owner may get another one, into which nothing would be written.
        PyObject* object = owner->second.get();
        const Known* k = find(object);
        node.parent = node_of_pinned(object, k != nullptr ? *k : known);
        node.reach = Reach::InstanceDict;
        node.place = known.place;
        node.demand.expected = Ref::borrow(container);
    } else {
        node.reach = Reach::Constant;
        node.key = container;
        node.place = add_place({known.place, Reach::Itself, 0, Ref::borrow(container)});
        if (PyList_CheckExact(container) || is_deque(container))
            node.demand = demand_for(container, true);
        if (node.demand.check == Check::Identity) node.demand.expected = Ref::borrow(container);
    }
    guards_.nodes.push_back(std::move(node));
    const auto number = static_cast<std::int32_t>(guards_.nodes.size()) - 1;
    pinned_nodes_[container] = number;
    return number;
}

PyObject* World::number_in(PyObject* container, const Known& known, Reach reach, Py_ssize_t index,
                           PyObject* key, PyObject* value) {
    if (!counted_ || value == nullptr) return nullptr;
    const bool tuple = !known.dynamic() && PyTuple_CheckExact(value);
    if (!tuple && !PyLong_CheckExact(value) && !PyFloat_CheckExact(value)) return nullptr;
    // A pinned container is the same at each recording.
    std::string path;
    if (const auto own = own_tuples_.find(container); own != own_tuples_.end())
        path = own->second;
    else if (known.dynamic())
        path = guards_.key(known.place);
    else
        path = "at " + std::to_string(reinterpret_cast<std::uintptr_t>(container));
    path = path_within(path, reach, index, key);
    const auto node_for = [&](PyObject* object) {
        Known parent = known;
        if (!known.dynamic()) parent.node = node_of_pinned(container, known);
        return add_node(parent, reach, index, key, object);
    };
    if (!tuple) return counted_(value, path, [&] { return node_for(value); });
    if (!varied_ || find(value) != nullptr || !is_tuple_of_numbers(value) || !varied_(value, path))
        return nullptr;
    // A tuple of its own, too: the code may have the other one among its constants.
    Ref own = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(value)));
    if (!own) throw Puzzle("no memory");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
        PyTuple_SET_ITEM(own.get(), i, Py_NewRef(PyTuple_GET_ITEM(value, i)));
    own_tuples_[own.get()] = std::move(path);
    (void)node_for(own.get());  // which holds it
    return own.get();
}

std::string World::path_within(const std::string& path, Reach reach, Py_ssize_t index,
                               PyObject* key) {
    std::string inner =
        path + "/" + std::to_string(static_cast<int>(reach)) + ":" + std::to_string(index);
    if (key != nullptr) inner += ":" + text_of_value(key);
    return inner;
}

Origin World::origin_of(PyObject* object) const {
    if (is_plain_constant(object)) return {Origin::Kind::Constant};
    if (const Known* k = find(object)) {
        if (k->tensor >= 0) return {Origin::Kind::Tensor, k->tensor};
        if (k->dynamic()) return {Origin::Kind::Node, k->node};
        return {Origin::Kind::Constant};
    }
    return {Origin::Kind::Fresh};
}

// ---- pinned containers ----

PinnedRead World::pinned_read(PyObject* key, PyObject* value, std::int32_t place) {
    if (is_tensor(value)) refuse_special_tensor(value);
    PinnedRead read;
    read.key = Ref::borrow(key);
    read.demand = demand_for(value, false);
    if (read.demand.check == Check::Tensor) {
        if (const Known* k = find(value); k != nullptr) {
            // Reached in two ways, which lead to one tensor: it stays this one in both. A weight
            // that two modules share, or a module and its optimizer, may be replaced in one.
            read.demand.check = Check::Identity;
            read.demand.expected = Ref::borrow(value);
            read.tensor = k->tensor;
            if (!fix_tensor(value)) meet(value, place, -1, -1);
            return read;
        }
        PinnedTensor tensor;
        tensor.tensor = Ref::borrow(value);
        tensor.facts = TensorFacts::of(value);
        tensor.place = place;
        guards_.tensors.push_back(std::move(tensor));
        read.tensor = static_cast<std::int32_t>(guards_.tensors.size()) - 1;
    }
    meet(value, place, -1, read.tensor);
    return read;
}

PinnedDict& World::pinned_dict(PyObject* dict, const Known& known) {
    const auto [it, fresh] = dict_index_.try_emplace(dict, guards_.dicts.size());
    if (fresh) {
        PinnedDict d;
        d.dict = Ref::borrow(dict);
        d.version = version_of(dict);
        d.place = known.place;
        if (const auto l = locations_.find(dict); l != locations_.end()) {
            d.location = l->second;
            d.owner = owners_[dict];
        }
        guards_.dicts.push_back(std::move(d));
    }
    return guards_.dicts[it->second];
}

void World::read_dict(PyObject* dict, PyObject* key) {
    const Known* found = find(dict);
    if (found == nullptr || found->dirty) return;
    const Ref own_key = one_for_equal(key);
    key = own_key.get();
    const Known known = *found;  // the map may grow
    if (written_.contains({dict, key}) || !reads_.insert({dict, key}).second) return;
    held_.push_back(Ref::borrow(key));
    if (!is_plain_constant(key) && !stands_for_itself(key)) {
        const Known* k = find(key);
        if (PyTuple_CheckExact(key))
            read_whole(key, 4);
        else if (is_tensor(key) ? k != nullptr && !fix_tensor(key) : k != nullptr && k->dynamic())
            throw Puzzle("a key that may be another object at the next call");
        else if (k == nullptr && !is_hashed_by_value(key))
            throw Puzzle("a key that was made while recording");
    }
    PyObject* value = PyDict_GetItemWithError(dict, key);
    if (value == nullptr && PyErr_Occurred()) {
        PyErr_Clear();
        throw Puzzle("a key that cannot be looked up");
    }
    if (PyDict_Check(dict))
        if (PyObject* own = number_in(dict, known, Reach::DictItem, 0, key, value)) {
            if (PyDict_SetItem(dict, key, own) != 0) throw Puzzle("an item that cannot be set");
            return;
        }
    // State that the program replaces (`self.state = (h, c)`) comes with the call, as it were.
    const auto is_replaced = [&] {
        return varied_ && may_be_replaced(value) && find(value) == nullptr &&
               varied_(value,
                       path_within("at " + std::to_string(reinterpret_cast<std::uintptr_t>(dict)),
                                   Reach::DictItem, 0, key));
    };
    if (known.dynamic() || is_let_go(value) || is_replaced()) {
        add_node(as_dynamic(dict), Reach::DictItem, 0, key, value);
        return;
    }
    const std::int32_t place = add_place({known.place, Reach::DictItem, 0, Ref::borrow(key)});
    PinnedRead read = pinned_read(key, value, place);
    pinned_dict(dict, known).reads.push_back(std::move(read));
}

PyObject* World::instance_dict(PyObject* owner) {
    PyObject** location = _PyObject_GetDictPtr(owner);
    if (location == nullptr || *location == nullptr) {
        const Known* known = location == nullptr ? nullptr : find(owner);
        if (known == nullptr) return nullptr;
        if (known->dynamic()) {
            if (reads_.insert({owner, owner}).second)
                add_node(Known(*known), Reach::InstanceDict, 0, nullptr, nullptr);
            return nullptr;
        }
        // Made now, so that there is something with a version to guard.
        Ref made = Ref::steal(PyObject_GenericGetDict(owner, nullptr));
        if (!made) {
            PyErr_Clear();
            return nullptr;
        }
        location = _PyObject_GetDictPtr(owner);
    }
    PyObject* dict = *location;
    const Known* found = find(owner);
    if (found == nullptr || find(dict) != nullptr) return dict;
    const Known known = *found;
    if (known.dynamic()) {
        add_node(known, Reach::InstanceDict, 0, nullptr, dict);
        return dict;
    }
    locations_[dict] = location;
    owners_[dict] = Ref::borrow(owner);
    meet(dict, add_place({known.place, Reach::InstanceDict, 0, {}}), -1, -1);
    return dict;
}

PyObject* World::read_class(PyTypeObject* type, PyObject* name) {
    PyObject* value = _PyType_Lookup(type, name);
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return value;
    auto* object = reinterpret_cast<PyObject*>(type);
    if (!reads_.insert({object, name}).second) return value;
    const auto [it, fresh] = type_index_.try_emplace(object, guards_.types.size());
    if (fresh) {
        held_.push_back(Ref::borrow(object));
        guards_.types.push_back({Ref::borrow(object), type_version(type), {}});
    }
    guards_.types[it->second].lookups.emplace_back(Ref::borrow(name), Ref::borrow(value));
    if (value != nullptr && find(value) == nullptr && !is_plain_constant(value)) {
        if (const Known* k = find(object); k == nullptr) pin(object, type->tp_name);
        meet(value, add_place({find(object)->place, Reach::Lookup, 0, Ref::borrow(name)}), -1, -1);
    }
    return value;
}

void World::read_special_method(PyTypeObject* type, PyObject* function) {
    for (PyObject* name : {reinterpret_cast<PyFunctionObject*>(function)->func_name,
                           reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))->co_name})
        read_class(type, name);
    PyObject* mro = type->tp_mro;
    for (Py_ssize_t i = 0; mro != nullptr && i < PyTuple_GET_SIZE(mro); ++i) {
        if (find(function) != nullptr) return;
        // Under another name than its own: a lambda, or what a decorator has made.
        PyObject* dict = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i))->tp_dict;
        Py_ssize_t position = 0;
        PyObject *name = nullptr, *value = nullptr;
        Ref found;
        while (!found && dict != nullptr && PyDict_Next(dict, &position, &name, &value)) {
            const bool wraps =
                Py_IS_TYPE(value, &PyStaticMethod_Type) || Py_IS_TYPE(value, &PyClassMethod_Type);
            const Ref inner = wraps ? Ref::steal(PyObject_GetAttrString(value, "__func__")) : Ref();
            if (value == function || inner.get() == function) found = Ref::borrow(name);
        }
        PyErr_Clear();
        if (found) read_class(type, found.get());
    }
}

void World::read_special_methods(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return;
    static const std::vector<PyObject*> names = [] {
        std::vector<PyObject*> all;
        for (const char* name : {"class",     "bool",
                                 "len",       "iter",
                                 "next",      "getitem",
                                 "setitem",   "delitem",
                                 "missing",   "contains",
                                 "reversed",  "eq",
                                 "ne",        "lt",
                                 "le",        "gt",
                                 "ge",        "hash",
                                 "neg",       "pos",
                                 "abs",       "invert",
                                 "index",     "int",
                                 "float",     "repr",
                                 "str",       "format",
                                 "enter",     "exit",
                                 "get",       "set",
                                 "delete",    "getattr",
                                 "setattr",   "delattr",
                                 "add",       "sub",
                                 "mul",       "matmul",
                                 "truediv",   "floordiv",
                                 "mod",       "pow",
                                 "and",       "or",
                                 "xor",       "lshift",
                                 "rshift",    "radd",
                                 "rsub",      "rmul",
                                 "rmatmul",   "rtruediv",
                                 "rfloordiv", "rmod",
                                 "rpow",      "iadd",
                                 "isub",      "imul",
                                 "imatmul",   "itruediv",
                                 "ior",       "iand",
                                 "ixor",      "instancecheck",
                                 "call",      "subclasscheck",
                                 "await",     "getattribute"})
            all.push_back(PyUnicode_InternFromString(("__" + std::string(name) + "__").c_str()));
        return all;
    }();
    // Whatever of them is set later is another meaning of what was done with the object.
    static PyObject* const all = PyUnicode_InternFromString("special methods");
    if (!reads_.insert({reinterpret_cast<PyObject*>(type), all}).second) return;
    for (PyObject* name : names) read_class(type, name);
}

void World::read_function(PyObject* function) {
    const Known* known = find(function);
    if (known == nullptr || !PyFunction_Check(function)) return;
    if (!reads_.insert({function, nullptr}).second) return;
    const std::int32_t place = known->place;
    auto* f = reinterpret_cast<PyFunctionObject*>(function);
    guards_.functions.push_back({Ref::borrow(function), Ref::borrow(f->func_code),
                                 Ref::borrow(f->func_defaults), Ref::borrow(f->func_kwdefaults)});
    const auto add = [&](PyObject* object, const char* name) {
        if (object == nullptr || is_plain_constant(object) || find(object) != nullptr) return;
        meet(object, add_place({place, Reach::Lookup, 0, Ref::steal(PyUnicode_FromString(name))}),
             -1, -1);
    };
    const auto add_item = [&](PyObject* item, const char* name) {
        if (item == nullptr || is_plain_constant(item) || find(item) != nullptr) return;
        const std::int32_t at =
            add_place({place, Reach::Lookup, 0, Ref::steal(PyUnicode_FromString(name))});
        std::int32_t tensor = -1;
        if (THPVariable_CheckExact(item)) {
            guards_.tensors.push_back({Ref::borrow(item), TensorFacts::of(item), false, false, at});
            tensor = static_cast<std::int32_t>(guards_.tensors.size()) - 1;
        }
        meet(item, at, -1, tensor);
    };
    add(f->func_globals, "__globals__");
    if (f->func_closure != nullptr)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(f->func_closure); ++i)
            add(PyTuple_GET_ITEM(f->func_closure, i), "__closure__");
    if (f->func_defaults != nullptr)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(f->func_defaults); ++i)
            add_item(PyTuple_GET_ITEM(f->func_defaults, i), "__defaults__");
    if (f->func_kwdefaults != nullptr) {
        add(f->func_kwdefaults, "__kwdefaults__");
        read_whole(f->func_kwdefaults);
    }
}

void World::read_cell(PyObject* cell) {
    const Known* found = find(cell);
    if (found == nullptr || written_.contains({cell, nullptr}) ||
        !reads_.insert({cell, nullptr}).second)
        return;
    const Known known = *found;
    if (PyObject* own = number_in(cell, known, Reach::Contents, 0, nullptr, PyCell_GET(cell))) {
        PyCell_Set(cell, own);
        return;
    }
    if (known.dynamic() || is_let_go(PyCell_GET(cell))) {
        add_node(as_dynamic(cell), Reach::Contents, 0, nullptr, PyCell_GET(cell));
        return;
    }
    PyObject* value = PyCell_GET(cell);
    const std::int32_t place = add_place({known.place, Reach::Contents, 0, {}});
    PinnedPointer p;
    p.location = &reinterpret_cast<PyCellObject*>(cell)->ob_ref;
    p.owner = Ref::borrow(cell);
    p.current = value;
    p.place = place;
    p.read = pinned_read(nullptr, value, place);
    if (p.read.demand.check == Check::Tensor) held_.push_back(Ref::borrow(value));
    guards_.pointers.push_back(std::move(p));
}

void World::read_member(PyObject* owner, PyObject* descriptor, PyObject* name) {
    const Known* found = find(owner);
    if (found == nullptr || written_.contains({owner, name}) ||
        !reads_.insert({owner, name}).second)
        return;
    const Known known = *found;
    const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
    if (member->type != T_OBJECT_EX && member->type != T_OBJECT) {
        if (!known.dynamic() || is_immutable_c_object(owner)) return;
        throw Puzzle("a C member of " + describe(owner));
    }
    auto** location = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(owner) + member->offset);
    if (member->flags == 0)
        if (PyObject* own =
                number_in(owner, known, Reach::Member, member->offset, name, *location)) {
            const Ref old = Ref::steal(*location);
            *location = Py_NewRef(own);
            return;
        }
    if (known.dynamic() || is_let_go(*location)) {
        add_node(as_dynamic(owner), Reach::Member, member->offset, name, *location);
        return;
    }
    const std::int32_t place =
        add_place({known.place, Reach::Member, member->offset, Ref::borrow(name)});
    guards_.pointers.push_back(
        pinned_pointer(owner, location, place, pinned_read(name, *location, place)));
}

void World::read_variable(PyObject* variable) {
    for (const auto& [written, value] : written_variables_)
        if (written.get() == variable) return;
    if (!reads_.insert({variable, nullptr}).second) return;
    held_.push_back(Ref::borrow(variable));
    PyObject* value = nullptr;
    if (PyContextVar_Get(variable, nullptr, &value) != 0) PyErr_Clear();
    const Ref owned = Ref::steal(value);
    add_node(Known{}, Reach::Variable, 0, variable, value);
}

void World::write_variable(PyObject* variable) {
    read_variable(variable);
    for (const auto& [written, value] : written_variables_)
        if (written.get() == variable) return;
    PyObject* value = nullptr;
    if (PyContextVar_Get(variable, nullptr, &value) != 0) PyErr_Clear();
    written_variables_.emplace_back(Ref::borrow(variable), Ref::steal(value));
}

bool World::variables_are_back() const {
    for (const auto& [variable, before] : written_variables_) {
        PyObject* value = nullptr;
        if (PyContextVar_Get(variable.get(), nullptr, &value) != 0) PyErr_Clear();
        Py_XDECREF(value);
        if (value != before.get()) return false;
    }
    return true;
}

// ---- attributes ----

void World::read_pointer(PyObject* owner, PyObject* name, PyObject** location) {
    if (written_.contains({owner, name}) ||
        !reads_.insert({owner, reinterpret_cast<PyObject*>(location)}).second)
        return;
    if (find(owner) == nullptr)
        pin(owner, PyType_Check(owner) ? reinterpret_cast<PyTypeObject*>(owner)->tp_name
                                       : Py_TYPE(owner)->tp_name);
    const std::int32_t place = add_place({find(owner)->place, Reach::Lookup, 0, Ref::borrow(name)});
    guards_.pointers.push_back(
        pinned_pointer(owner, location, place, pinned_read(name, *location, place)));
}

void World::read_type_attribute(PyTypeObject* owner, PyObject* name) {
    auto* object = reinterpret_cast<PyObject*>(owner);
    PyObject* found = read_class(Py_TYPE(object), name);
    read_class(owner, name);
    // Setting its name leaves a class's version as it is.
    if (found == nullptr || Py_TYPE(found) != &PyGetSetDescr_Type) return;
    read_type_names(object, name);
    // Whoever has the dict reads anything: no other version of the class will do.
    if (text_of(name) != "__dict__" || !PyType_HasFeature(owner, Py_TPFLAGS_HEAPTYPE)) return;
    guards_.types[type_index_.at(object)].lookups.emplace_back(Ref::borrow(name),
                                                               Ref::borrow(Py_NotImplemented));
}

void World::read_type_names(PyObject* type, PyObject* name) {
    if (!PyType_HasFeature(reinterpret_cast<PyTypeObject*>(type), Py_TPFLAGS_HEAPTYPE)) return;
    static PyObject* const names[] = {PyUnicode_InternFromString("__name__"),
                                      PyUnicode_InternFromString("__qualname__")};
    auto* heap = reinterpret_cast<PyHeapTypeObject*>(type);
    PyObject** const locations[] = {&heap->ht_name, &heap->ht_qualname};
    for (int i = 0; i < 2; ++i)
        if (name == nullptr || PyUnicode_Compare(name, names[i]) == 0)
            read_pointer(type, names[i], locations[i]);
}

/// What a function has beside its code and defaults.
void World::read_function_attribute(PyObject* function, PyObject* name) {
    auto* f = reinterpret_cast<PyFunctionObject*>(function);
    const std::string text = text_of(name);
    if (text == "__name__") return read_pointer(function, name, &f->func_name);
    if (text == "__qualname__") return read_pointer(function, name, &f->func_qualname);
    if (text != "__annotations__") return;
    // Reading makes a dict of them, where there is none yet.
    if (!Ref::steal(PyObject_GetAttr(function, name))) PyErr_Clear();
    read_pointer(function, name, &f->func_annotations);
}

void World::read_instance(PyObject* owner, PyObject* name, PyObject* descriptor) {
    PyObject* dict = instance_dict(owner);
    if (dict != nullptr) read_dict(dict, name);
    (void)descriptor;
}

void World::read_attribute(PyObject* owner, PyObject* name, bool plainly) {
    PyTypeObject* type = Py_TYPE(owner);
    if (PyType_Check(owner))
        return read_type_attribute(reinterpret_cast<PyTypeObject*>(owner), name);
    if (PyModule_Check(owner)) {
        static PyObject* const getattr = PyUnicode_InternFromString("__getattr__");
        PyObject* dict = PyModule_GetDict(owner);
        if (find(owner) == nullptr) pin(owner, PyModule_GetName(owner));
        if (find(dict) == nullptr)
            meet(dict, add_place({find(owner)->place, Reach::InstanceDict, 0, {}}), -1, -1);
        read_dict(dict, name);
        if (PyDict_GetItemWithError(dict, name) == nullptr) {
            PyErr_Clear();
            read_dict(dict, getattr);
        }
        return;
    }
    if (type == &PySuper_Type) {
        // The class attributes that super() searches are those of the object's class.
        Ref cls = Ref::steal(PyObject_GetAttrString(owner, "__self_class__"));
        if (!cls) PyErr_Clear();
        if (cls && PyType_Check(cls.get())) {
            auto* start = reinterpret_cast<PyTypeObject*>(cls.get());
            PyObject* mro = start->tp_mro;
            for (Py_ssize_t i = 0; mro != nullptr && i < PyTuple_GET_SIZE(mro); ++i)
                read_class(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i)), name);
        }
        return;
    }
    if (PyMethod_Check(owner)) {  // forwards to the function
        read_method(owner);
        return read_attribute(PyMethod_GET_FUNCTION(owner), name);
    }
    if (const Known* k = find(owner);
        k != nullptr && !k->dynamic() && is_python_class(type) &&
        reads_.insert({owner, reinterpret_cast<PyObject*>(type)}).second) {
        // Its class may be exchanged.
        PinnedPointer p;
        p.location = reinterpret_cast<PyObject**>(&owner->ob_type);
        p.owner = Ref::borrow(owner);
        p.current = reinterpret_cast<PyObject*>(type);
        p.place = k->place;
        p.read.demand.expected = Ref::borrow(p.current);
        guards_.pointers.push_back(std::move(p));
    }
    PyObject* found = read_class(type, name);
    static PyObject* const ways[] = {PyUnicode_InternFromString("__getattr__"),
                                     PyUnicode_InternFromString("__getattribute__")};
    for (PyObject* way : ways) read_class(type, way);
    if (is_local_of_threads(type)) {
        if (found != nullptr) read_special_methods(found);
        const bool data = found != nullptr && Py_TYPE(found)->tp_descr_set != nullptr;
        if (PyObject* dict = thread_dict(owner);
            dict != nullptr && (!data || Py_TYPE(found) == &PyGetSetDescr_Type))
            read_dict(dict, name);
        return;
    }
    if (is_deque(owner) && text_of(name) == "maxlen") return;  // guarded with its length
    if (!has_generic_attributes(type)) {
        if (find(owner) != nullptr && !is_immutable_c_object(owner))
            throw Puzzle("an attribute of " + describe(owner));
        return;
    }
    if (!plainly && has_python_getattribute(type)) return;  // it reports what it does
    descrgetfunc get = found == nullptr ? nullptr : Py_TYPE(found)->tp_descr_get;
    const bool data = get != nullptr && Py_TYPE(found)->tp_descr_set != nullptr;
    if (data) {
        read_special_methods(found);
        if (Py_TYPE(found) == &PyMemberDescr_Type) return read_member(owner, found, name);
        if (Py_TYPE(found) == &PyGetSetDescr_Type) {
            if (find(owner) == nullptr) return;
            const char* text = PyUnicode_AsUTF8(name);
            const std::string_view n = text == nullptr ? "" : text;
            if (n == "__dict__") {
                instance_dict(owner);
                return;
            }
            if (n == "__class__" || is_immutable_c_object(owner)) return;
            if (PyFunction_Check(owner)) {
                read_function_attribute(owner, name);
                return read_function(owner);
            }
            if (is_tensor(owner)) return;  // the recorder's business
            throw Puzzle("the attribute " + std::string(n) + " of " + describe(owner));
        }
        return;  // properties and descriptors of Python classes report themselves
    }
    read_instance(owner, name, found);
    if (found != nullptr && get != nullptr) read_special_methods(found);
}

// ---- items and whole containers ----

void World::read_item(PyObject* container, PyObject* key) {
    const Known* found = find(container);
    if (PyDict_Check(container)) {
        if (found == nullptr) return;
        read_dict(container, key);
        if (PyDict_CheckExact(container) || PyDict_GetItemWithError(container, key) != nullptr)
            return;
        PyErr_Clear();
        static PyObject* const missing = PyUnicode_InternFromString("__missing__");
        PyObject* method = _PyType_Lookup(Py_TYPE(container), missing);
        if (method == nullptr || PyFunction_Check(method)) return;
        static PyObject* const factory = PyUnicode_InternFromString("default_factory");
        const Ref makes = Ref::steal(PyObject_GenericGetAttr(container, factory));
        if (!makes) PyErr_Clear();
        if (!makes || makes.get() == Py_None)
            throw Puzzle("a key that is not in " + describe(container));
        read_attribute(container, factory);
        write_dict(container, key);  // the default becomes an item
        return;
    }
    if (found == nullptr || found->dirty) return;
    if (PyType_Check(container)) return;  // a generic class
    if (PyTuple_Check(container) || PyList_Check(container) || is_deque(container))
        return read_whole(container);
    if (is_immutable_c_object(container) || PyAnySet_Check(container)) return;
    if (has_python_layout(Py_TYPE(container))) return;  // its method reports itself
    throw Puzzle("an item of " + describe(container));
}

}  // namespace ingot::capture
