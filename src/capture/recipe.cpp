// Building recipes and carrying them out; see recipe.h.
#include "capture/recipe.h"

#include <structmember.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <optional>
#include <string_view>

#include "capture/dict_image.h"
#include "capture/interpreter/unstarted.h"
#include "capture/objects.h"
#include "capture/set_image.h"

namespace ingot::capture {
namespace {

bool is_immutable(PyObject* o) {
    return is_plain_constant(o) || PyType_Check(o) || PyRange_Check(o) || PyCode_Check(o) ||
           PyModule_Check(o) || THPDtype_Check(o) || THPDevice_Check(o) || THPLayout_Check(o) ||
           THPMemoryFormat_Check(o) || Py_TYPE(o) == &PyWrapperDescr_Type ||
           Py_TYPE(o) == &PyMethodDescr_Type || Py_TYPE(o) == &PyClassMethodDescr_Type ||
           Py_TYPE(o) == &PyGetSetDescr_Type || Py_TYPE(o) == &PyMemberDescr_Type;
}

/// The first base that Python code did not define: how instances are laid out.
PyTypeObject* layout_of(PyTypeObject* type) {
    while (is_python_class(type)) type = type->tp_base;
    return type;
}

/// The beginning of CPython's iterators over dicts, which `__reduce__` would turn into ones over
/// lists, blind to changes of the dict.
struct DictIterator {
    PyObject ob_base;
    PyObject* dict;  // none: it is at its end
    Py_ssize_t used;
    Py_ssize_t position;
    PyObject* result;
    Py_ssize_t left;
};
bool is_dict_iterator(PyObject* o) {
    PyTypeObject* t = Py_TYPE(o);
    return t == &PyDictIterKey_Type || t == &PyDictIterValue_Type || t == &PyDictIterItem_Type;
}

bool is_iterator_with_reduce(PyObject* o) {
    PyTypeObject* t = Py_TYPE(o);
    return t == &PyListIter_Type || t == &PyTupleIter_Type || t == &PyRangeIter_Type ||
           t == &PyEnum_Type || t == &PyZip_Type || t == &PyReversed_Type || t == &PyMap_Type ||
           t == &PyFilter_Type || t == &PyListRevIter_Type || is_dict_iterator(o);
}

/// CPython's itertools.chain.
struct Chain {
    PyObject ob_base;
    PyObject* source;  // an iterator over iterables; none: it is at its end
    PyObject* active;  // over the current one
};

bool has_name(PyObject* o, std::string_view name) { return Py_TYPE(o)->tp_name == name; }

/// Makes an instance of `type` as its layout's own __new__ does.
PyObject* bare(PyObject* type) {
    auto* t = reinterpret_cast<PyTypeObject*>(type);
    Ref nothing = Ref::steal(PyTuple_New(0));
    return nothing ? layout_of(t)->tp_new(t, nothing.get(), nullptr) : nullptr;
}

/// A new set of the class of `set` and with its places.
PyObject* placed_set(PyObject* set) {
    Ref made =
        Ref::steal(PyFrozenSet_CheckExact(set) ? PyFrozenSet_New(nullptr)
                                               : bare(reinterpret_cast<PyObject*>(Py_TYPE(set))));
    if (!made || SetImage(set).restore(made.get())) return made.release();
    return PyErr_NoMemory();
}

[[noreturn]] void refuse(PyObject* o) {
    throw NoRecipe(std::string("an object of type ") + Py_TYPE(o)->tp_name +
                   " that was made while recording cannot be made again");
}

}  // namespace

std::int32_t RecipeBuilder::emit(Instruction i) {
    recipes_.instructions.push_back(std::move(i));
    return static_cast<std::int32_t>(recipes_.instructions.size()) - 1;
}

std::int32_t RecipeBuilder::add(PyObject* object) {
    if (object == nullptr) return emit({Make::Nothing});
    if (const auto found = made_.find(object); found != made_.end()) {
        if (found->second < 0) refuse(object);  // a cycle through something immutable
        return found->second;
    }
    if (++depth_ > 200) throw NoRecipe("objects nested too deeply");
    held_.push_back(Ref::borrow(object));
    const Origin origin = origin_(object);
    std::int32_t at = -1;
    switch (origin.kind) {
        case Origin::Kind::Constant:
            at = emit({Make::Constant, -1, 0, Ref::borrow(object)});
            break;
        case Origin::Kind::Node:
            at = emit({Make::Node, origin.index});
            break;
        case Origin::Kind::Tensor:
            at = emit({Make::Tensor, origin.index});
            break;
        case Origin::Kind::Output:
            at = emit({Make::Output, origin.index});
            break;
        case Origin::Kind::Number:
            at = emit({Make::Number, origin.index});
            break;
        case Origin::Kind::Float:
            at = emit({Make::Float, origin.index});
            break;
        case Origin::Kind::Unknown:
            throw NoRecipe(origin.reason);
        case Origin::Kind::Fresh:
            made_[object] = -1;
            at = fresh(object);
            break;
    }
    made_[object] = at;
    --depth_;
    return at;
}

std::vector<std::int32_t> RecipeBuilder::add_pairs(PyObject* dict) {
    std::vector<std::int32_t> parts;
    Py_ssize_t position = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(dict, &position, &key, &value)) {
        parts.push_back(add(key));
        parts.push_back(add(value));
    }
    return parts;
}

std::int32_t RecipeBuilder::tuple(PyObject* o) {
    std::vector<std::int32_t> parts;
    bool constant = true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) {
        parts.push_back(add(PyTuple_GET_ITEM(o, i)));
        constant = constant && recipes_.instructions[static_cast<std::size_t>(parts.back())].make ==
                                   Make::Constant;
    }
    PyObject** dict = _PyObject_GetDictPtr(o);
    if (dict != nullptr && *dict != nullptr && PyDict_GET_SIZE(*dict) != 0) refuse(o);
    if (constant) return emit({Make::Constant, -1, 0, Ref::borrow(o)});
    return emit({Make::Tuple, -1, 0, Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(o))),
                 std::move(parts)});
}

std::int32_t RecipeBuilder::function(PyObject* o) {
    auto* f = reinterpret_cast<PyFunctionObject*>(o);
    if (f->func_dict != nullptr && PyDict_GET_SIZE(f->func_dict) != 0) refuse(o);
    std::vector<std::int32_t> parts;
    for (PyObject* part : {f->func_code, f->func_globals, f->func_closure, f->func_defaults,
                           f->func_kwdefaults, f->func_name, f->func_qualname})
        // Globals are the module's: never copied.
        parts.push_back(part == f->func_globals ? emit({Make::Constant, -1, 0, Ref::borrow(part)})
                                                : add(part == nullptr ? Py_None : part));
    return emit({Make::Function, -1, 0, Ref::borrow(f->func_module), std::move(parts)});
}

std::int32_t RecipeBuilder::iterator(PyObject* o) {
    if (is_dict_iterator(o)) {
        // One that has met a change of its dict's size raises: it cannot be made again.
        const auto* it = reinterpret_cast<const DictIterator*>(o);
        if (it->dict != nullptr && it->used != PyDict_GET_SIZE(it->dict)) refuse(o);
        if (it->dict != nullptr) {
            const std::int32_t dict = add(it->dict);
            return emit({Make::DictIterator,
                         -1,
                         it->used - it->left,
                         Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(o))),
                         {dict}});
        }
    }
    Ref reduced = Ref::steal(PyObject_CallMethod(o, "__reduce__", nullptr));
    if (!reduced || !PyTuple_Check(reduced.get())) {
        PyErr_Clear();
        refuse(o);
    }
    held_.push_back(reduced);
    std::vector<std::int32_t> parts;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(reduced.get()) && i < 3; ++i)
        parts.push_back(add(PyTuple_GET_ITEM(reduced.get(), i)));
    return emit({Make::Reduced, -1, 0, {}, std::move(parts)});
}

std::int32_t RecipeBuilder::deque(PyObject* o) {
    const Ref arguments = Ref::steal(Py_BuildValue("(()O)", most_of_deque(o).get()));
    if (!arguments) refuse(o);
    const std::int32_t type =
        emit({Make::Constant, -1, 0, Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(o)))});
    const std::int32_t empty = emit({Make::Constant, -1, 0, arguments});
    const std::int32_t at = emit({Make::Reduced, -1, 0, {}, {type, empty}});
    made_[o] = at;
    Instruction fill{Make::FillList, at};
    for (Py_ssize_t i = 0; i < Py_SIZE(o); ++i) fill.parts.push_back(add(item_of_deque(o, i)));
    emit(std::move(fill));
    return at;
}

std::int32_t RecipeBuilder::generator(PyObject* o) {
    const std::optional<GeneratorCall> call = call_of_unstarted(o);
    if (!call) refuse(o);
    std::vector<std::int32_t> parts = {add(call->function)};
    for (PyObject* argument : call->positional) parts.push_back(add(argument));
    for (PyObject* argument : call->keyword_values) parts.push_back(add(argument));
    Ref names = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(call->keyword_names.size())));
    if (!names) refuse(o);
    for (std::size_t k = 0; k < call->keyword_names.size(); ++k)
        PyTuple_SET_ITEM(names.get(), static_cast<Py_ssize_t>(k),
                         Py_NewRef(call->keyword_names[k]));
    return emit({Make::Generator, -1, 0, std::move(names), std::move(parts)});
}

std::int32_t RecipeBuilder::chain(PyObject* o) {
    const auto* it = reinterpret_cast<const Chain*>(o);
    if (it->source == nullptr || it->active != nullptr) refuse(o);
    const std::int32_t source = add(it->source);
    const std::int32_t arguments = emit(
        {Make::Tuple, -1, 0, Ref::borrow(reinterpret_cast<PyObject*>(&PyTuple_Type)), {source}});
    Ref make = Ref::steal(
        PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), "from_iterable"));
    if (!make) refuse(o);
    const std::int32_t function = emit({Make::Constant, -1, 0, std::move(make)});
    return emit({Make::Reduced, -1, 0, {}, {function, arguments}});
}

Ref RecipeBuilder::image_of_set(PyObject* set, const std::vector<std::int32_t>& members) const {
    for (std::int32_t member : members)
        if (recipes_.instructions[static_cast<std::size_t>(member)].make != Make::Constant)
            return {};
    if (members.empty() || finalizer_of(Py_TYPE(set)) != nullptr) return {};
    Ref image = Ref::steal(placed_set(set));
    if (!image) PyErr_Clear();
    return image;
}

void RecipeBuilder::fill_vars(PyObject* o, std::int32_t at) {
    PyObject** dict = _PyObject_GetDictPtr(o);
    if (dict == nullptr || *dict == nullptr) return;
    if (PyDict_GET_SIZE(*dict) == 0) return;
    Instruction fill{Make::FillVars, at};
    fill.parts = add_pairs(*dict);
    emit(std::move(fill));
}

std::int32_t RecipeBuilder::plain_object(PyObject* o) {
    PyTypeObject* type = Py_TYPE(o);
    PyTypeObject* layout = layout_of(type);
    const Ref type_ref = Ref::borrow(reinterpret_cast<PyObject*>(type));
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type->tp_del != nullptr) refuse(o);
    std::int32_t at = -1;
    if (layout == &PyBaseObject_Type) {
        if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) refuse(o);
        at = emit({Make::Object, -1, 0, type_ref});
        made_[o] = at;
    } else if (layout == &PyDict_Type || layout == &PyODict_Type) {
        at = emit({Make::Dict, -1, 0, type_ref});
        made_[o] = at;
        Instruction fill{Make::FillDict, at};
        if (layout == &PyODict_Type) {
            // Its own order may differ from the dict's.
            Ref keys = Ref::steal(PyODict_Type.tp_iter(o));
            while (keys) {
                Ref key = Ref::steal(PyIter_Next(keys.get()));
                if (!key) break;
                PyObject* value = PyDict_GetItem(o, key.get());
                fill.parts.push_back(add(key.get()));
                fill.parts.push_back(add(value));
            }
            if (PyErr_Occurred()) {
                PyErr_Clear();
                refuse(o);
            }
        } else {
            fill.parts = add_pairs(o);
        }
        emit(std::move(fill));
    } else if (layout == &PyList_Type) {
        at = emit({Make::List, -1, 0, type_ref});
        made_[o] = at;
        Instruction fill{Make::FillList, at};
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); ++i)
            fill.parts.push_back(add(PyList_GET_ITEM(o, i)));
        emit(std::move(fill));
    } else if (layout == &PySet_Type) {
        at = emit({Make::Set, -1, 0, type_ref});
        made_[o] = at;
        Instruction fill{Make::FillSet, at};
        Ref items = Ref::steal(PySequence_List(o));
        if (!items) refuse(o);
        held_.push_back(items);
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i)
            fill.parts.push_back(add(PyList_GET_ITEM(items.get(), i)));
        if (Ref image = image_of_set(o, fill.parts)) {
            Instruction& made = recipes_.instructions[static_cast<std::size_t>(at)];
            made.make = Make::PlacedSet;
            made.object = std::move(image);
        } else {
            emit(std::move(fill));
        }
    } else {
        refuse(o);
    }
    // Members of classes with __slots__ (the dictionary and weak references are no members).
    for (PyTypeObject* t = type; t != layout; t = t->tp_base) {
        for (Py_ssize_t i = 0; i < Py_SIZE(t); ++i) {
            const PyMemberDef& m = t->tp_members[i];
            if (m.type != T_OBJECT_EX) continue;
            PyObject* value = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + m.offset);
            if (value == nullptr) continue;
            const std::int32_t part = add(value);
            emit({Make::FillMember, at, m.offset, {}, {part}});
        }
    }
    fill_vars(o, at);
    return at;
}

std::int32_t RecipeBuilder::fresh(PyObject* o) {
    if (is_immutable(o)) return emit({Make::Constant, -1, 0, Ref::borrow(o)});
    if (PyTuple_Check(o)) return tuple(o);
    if (PyFunction_Check(o)) return function(o);
    if (is_iterator_with_reduce(o)) return iterator(o);
    if (has_name(o, "functools.partial")) return iterator(o);
    if (has_name(o, "itertools.chain")) return chain(o);
    if (PyGen_CheckExact(o)) return generator(o);
    if (PyMethod_Check(o)) {
        const std::int32_t f = add(PyMethod_GET_FUNCTION(o)), s = add(PyMethod_GET_SELF(o));
        return emit({Make::Method, -1, 0, {}, {f, s}});
    }
    if (PyCFunction_Check(o)) {
        PyObject* self = PyCFunction_GET_SELF(o);
        if (self == nullptr || PyModule_Check(self) || PyType_Check(self))
            return emit({Make::Constant, -1, 0, Ref::borrow(o)});
        const std::int32_t s = add(self);
        const char* name = reinterpret_cast<PyCFunctionObject*>(o)->m_ml->ml_name;
        return emit({Make::Bound, -1, 0, Ref::steal(PyUnicode_InternFromString(name)), {s}});
    }
    if (PyCell_Check(o)) {
        const std::int32_t at = emit({Make::Cell});
        made_[o] = at;
        if (PyObject* value = PyCell_GET(o)) {
            const std::int32_t part = add(value);
            emit({Make::FillCell, at, 0, {}, {part}});
        }
        return at;
    }
    if (PySlice_Check(o)) {
        auto* s = reinterpret_cast<PySliceObject*>(o);
        const std::int32_t a = add(s->start), b = add(s->stop), c = add(s->step);
        return emit({Make::Slice, -1, 0, {}, {a, b, c}});
    }
    if (is_deque(o)) return deque(o);
    if (PyFrozenSet_CheckExact(o)) {
        std::vector<std::int32_t> parts;
        Ref items = Ref::steal(PySequence_List(o));
        if (!items) refuse(o);
        held_.push_back(items);
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i)
            parts.push_back(add(PyList_GET_ITEM(items.get(), i)));
        if (Ref image = image_of_set(o, parts))
            return emit({Make::PlacedSet, -1, 0, std::move(image)});
        return emit({Make::FrozenSet, -1, 0, {}, std::move(parts)});
    }
    return plain_object(o);
}

void RecipeBuilder::effect(Make make, PyObject* target, std::vector<PyObject*> parts) {
    Instruction i{make, add(target)};
    for (PyObject* part : parts) i.parts.push_back(add(part));
    effects_.push_back(std::move(i));
}

Recipes RecipeBuilder::finish() {
    recipes_.effects_from = recipes_.instructions.size();
    for (Instruction& i : effects_) recipes_.instructions.push_back(std::move(i));
    return std::move(recipes_);
}

int Recipes::traverse(visitproc visit, void* arg) const {
    for (const Instruction& i : instructions) Py_VISIT(i.object.get());
    return 0;
}

// ---- carrying out ----

namespace {

struct Worker {
    const Recipes& recipes;
    const Values& values;
    const GuardSet& guards;
    std::span<PyObject* const> outputs;
    std::vector<Ref>& registers;

    PyObject* part(const Instruction& i, std::size_t n) const {
        return registers[static_cast<std::size_t>(i.parts[n])].get();
    }
    PyObject* target(const Instruction& i) const {
        return registers[static_cast<std::size_t>(i.index)].get();
    }

    PyObject* make_tuple(const Instruction& i) const {
        Ref made = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(i.parts.size())));
        if (!made) return nullptr;
        for (std::size_t n = 0; n < i.parts.size(); ++n)
            PyTuple_SET_ITEM(made.get(), static_cast<Py_ssize_t>(n), Py_NewRef(part(i, n)));
        auto* type = reinterpret_cast<PyTypeObject*>(i.object.get());
        if (type == &PyTuple_Type || type == nullptr) return made.release();
        Ref arguments = Ref::steal(PyTuple_Pack(1, made.get()));
        // Structural sequences and torch.Size have their own __new__; named tuples use tuple's.
        newfunc create = is_python_class(type) ? layout_of(type)->tp_new : type->tp_new;
        return arguments ? create(type, arguments.get(), nullptr) : nullptr;
    }

    PyObject* make_function(const Instruction& i) const {
        Ref f = Ref::steal(PyFunction_NewWithQualName(part(i, 0), part(i, 1), part(i, 6)));
        if (!f) return nullptr;
        auto* o = reinterpret_cast<PyFunctionObject*>(f.get());
        if (part(i, 2) != Py_None && PyFunction_SetClosure(f.get(), part(i, 2)) != 0)
            return nullptr;
        if (part(i, 3) != Py_None && PyFunction_SetDefaults(f.get(), part(i, 3)) != 0)
            return nullptr;
        if (part(i, 4) != Py_None && PyFunction_SetKwDefaults(f.get(), part(i, 4)) != 0)
            return nullptr;
        Py_XSETREF(o->func_name, Py_NewRef(part(i, 5)));
        if (i.object) Py_XSETREF(o->func_module, Py_NewRef(i.object.get()));
        return f.release();
    }

    PyObject* make_reduced(const Instruction& i) const {
        Ref made = Ref::steal(PyObject_CallObject(part(i, 0), part(i, 1)));
        if (!made || i.parts.size() < 3 || part(i, 2) == Py_None) return made.release();
        Ref done = Ref::steal(PyObject_CallMethod(made.get(), "__setstate__", "(O)", part(i, 2)));
        return done ? made.release() : nullptr;
    }

    PyObject* make_dict_iterator(const Instruction& i) const {
        auto* type = reinterpret_cast<PyTypeObject*>(i.object.get());
        const char* view = type == &PyDictIterKey_Type     ? "keys"
                           : type == &PyDictIterValue_Type ? "values"
                                                           : "items";
        const Ref all = Ref::steal(
            PyObject_CallMethod(reinterpret_cast<PyObject*>(&PyDict_Type), view, "O", part(i, 0)));
        Ref made = all ? Ref::steal(PyObject_GetIter(all.get())) : Ref();
        for (Py_ssize_t n = 0; made && n < i.offset; ++n)
            if (!Ref::steal(PyIter_Next(made.get()))) break;
        return made.release();
    }

    PyObject* make_generator(const Instruction& i) const {
        std::vector<PyObject*> arguments;
        for (std::size_t n = 1; n < i.parts.size(); ++n) arguments.push_back(part(i, n));
        const auto named = static_cast<std::size_t>(PyTuple_GET_SIZE(i.object.get()));
        return PyObject_Vectorcall(part(i, 0), arguments.data(), arguments.size() - named,
                                   named == 0 ? nullptr : i.object.get());
    }

    PyObject* create(const Instruction& i) const {
        switch (i.make) {
            case Make::Constant:
                return Py_NewRef(i.object.get());
            case Make::Node:
                return Py_XNewRef(values[static_cast<std::size_t>(i.index)]);
            case Make::Tensor:
                return Py_NewRef(guards.tensors[static_cast<std::size_t>(i.index)].tensor.get());
            case Make::Output:
                return Py_NewRef(outputs[static_cast<std::size_t>(i.index)]);
            case Make::Number:
                return PyLong_FromLongLong(guards.find_sizes()->computed(i.index, values.symbols));
            case Make::Float:
                return PyFloat_FromDouble(values.floats[static_cast<std::size_t>(i.index)]);
            case Make::Tuple:
                return make_tuple(i);
            case Make::List:
            case Make::Dict:
            case Make::Set:
            case Make::Object:
                return bare(i.object.get());
            case Make::FrozenSet: {
                Ref items = Ref::steal(make_tuple(i));
                return items ? PyFrozenSet_New(items.get()) : nullptr;
            }
            case Make::PlacedSet:
                return placed_set(i.object.get());
            case Make::Slice:
                return PySlice_New(part(i, 0), part(i, 1), part(i, 2));
            case Make::Method:
                return PyMethod_New(part(i, 0), part(i, 1));
            case Make::Bound:
                return PyObject_GetAttr(part(i, 0), i.object.get());
            case Make::Cell:
                return PyCell_New(nullptr);
            case Make::Function:
                return make_function(i);
            case Make::Reduced:
                return make_reduced(i);
            case Make::DictIterator:
                return make_dict_iterator(i);
            case Make::Generator:
                return make_generator(i);
            default:
                return nullptr;
        }
    }

    bool pairs(const Instruction& i, auto&& set) const {
        for (std::size_t n = 0; n + 1 < i.parts.size(); n += 2)
            if (set(part(i, n), part(i, n + 1)) != 0) return false;
        return true;
    }

    /// Of a dict of any class, whatever that makes of it.
    static bool set_item(PyObject* dict, PyObject* key, PyObject* value) {
        return (PyODict_Check(dict) ? PyODict_SetItem(dict, key, value)
                                    : PyDict_SetItem(dict, key, value)) == 0;
    }
    /// It may be gone: two keys that are equal are written one by one.
    static bool delete_item(PyObject* dict, PyObject* key) {
        const int found = PyDict_Contains(dict, key);
        if (found <= 0) return found == 0;
        return (PyODict_Check(dict) ? PyODict_DelItem(dict, key) : PyDict_DelItem(dict, key)) == 0;
    }

    /// With one argument, which may be a tuple.
    static Ref call_method(PyObject* o, const char* name, PyObject* argument) {
        return Ref::steal(PyObject_CallMethod(o, name, "(O)", argument));
    }

    static bool append(PyObject* o, PyObject* item) {
        if (PyList_Check(o)) return PyList_Append(o, item) == 0;
        return static_cast<bool>(call_method(o, "append", item));
    }

    /// `order`: of an OrderedDict, where it is another than that of the contents.
    static bool rewrite(PyObject* o, PyObject* contents, PyObject* order) {
        if (PyList_Check(o)) return PyList_SetSlice(o, 0, PyList_GET_SIZE(o), contents) == 0;
        if (is_deque(o)) {
            const Ref cleared = Ref::steal(PyObject_CallMethod(o, "clear", nullptr));
            return cleared && call_method(o, "extend", contents);
        }
        if (PyDict_Check(o)) return refill(o, contents, order);
        // Where `pop` goes on is not part of what was recorded.
        Py_ssize_t& finger = reinterpret_cast<PySetObject*>(o)->finger;
        const Py_ssize_t kept = finger;
        if (!SetImage(contents).restore(o)) return PyErr_NoMemory() != nullptr;
        finger = kept;
        return true;
    }

    static bool move(PyObject* iterator, Py_ssize_t times) {
        for (Py_ssize_t n = 0; n < times; ++n)
            if (!Ref::steal(PyIter_Next(iterator)) && PyErr_Occurred()) return false;
        return true;
    }

    bool fill(const Instruction& i) const {
        PyObject* o = target(i);
        switch (i.make) {
            case Make::FillList:
                for (std::size_t n = 0; n < i.parts.size(); ++n)
                    if (!append(o, part(i, n))) return false;
                return true;
            case Make::FillDict:
                if (PyODict_Check(o))
                    return pairs(
                        i, [&](PyObject* k, PyObject* v) { return PyODict_SetItem(o, k, v); });
                return pairs(i, [&](PyObject* k, PyObject* v) { return PyDict_SetItem(o, k, v); });
            case Make::FillSet:
                for (std::size_t n = 0; n < i.parts.size(); ++n)
                    if (PySet_Add(o, part(i, n)) != 0) return false;
                return true;
            case Make::FillCell:
                return PyCell_Set(o, part(i, 0)) == 0;
            case Make::FillMember: {
                auto** place = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + i.offset);
                Py_XSETREF(*place, Py_NewRef(part(i, 0)));
                return true;
            }
            case Make::FillVars: {
                Ref dict = Ref::steal(PyObject_GenericGetDict(o, nullptr));
                return dict && pairs(i, [&](PyObject* k, PyObject* v) {
                           return PyDict_SetItem(dict.get(), k, v);
                       });
            }
            case Make::SetItem:
                if (part(i, 1) != nullptr) return set_item(o, part(i, 0), part(i, 1));
                return delete_item(o, part(i, 0));
            case Make::SetLast:
                return delete_item(o, part(i, 0)) && set_item(o, part(i, 0), part(i, 1));
            case Make::SetAttribute:
                if (PyCell_Check(o)) return PyCell_Set(o, part(i, 1)) == 0;
                return PyObject_GenericSetAttr(o, part(i, 0), part(i, 1)) == 0;
            case Make::Rewrite:
                return rewrite(o, part(i, 0), i.parts.size() > 1 ? part(i, 1) : nullptr);
            case Make::Move:
                return move(o, PyLong_AsSsize_t(part(i, 0)));
            case Make::Call:
                return static_cast<bool>(Ref::steal(PyObject_CallObject(o, part(i, 0))));
            default:
                return false;
        }
    }
};

}  // namespace

bool carry_out(const Recipes& recipes, const Values& values, const GuardSet& guards,
               std::span<PyObject* const> outputs, std::vector<Ref>& registers) {
    registers.resize(recipes.instructions.size());
    const Worker worker{recipes, values, guards, outputs, registers};
    for (std::size_t n = 0; n < recipes.instructions.size(); ++n) {
        const Instruction& i = recipes.instructions[n];
        if (i.make >= Make::FillList) {
            if (!worker.fill(i)) return false;
        } else if (i.make != Make::Nothing) {
            registers[n] = Ref::steal(worker.create(i));
            if (!registers[n] && i.make != Make::Node) return false;
        }
    }
    return true;
}

}  // namespace ingot::capture
