// Checking guards and saying why one failed; see guards.h.
#include "capture/guards.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <utility>

#include "capture/dict_version.h"
#include "capture/guard_text.h"
#include "capture/histories.h"
#include "capture/iterators.h"
#include "capture/objects.h"
#include "capture/warnings.h"

namespace ingot::capture {
namespace {

c10::DispatchKeySet meaning_keys(const c10::TensorImpl& t) {
    static constexpr c10::DispatchKeySet kIgnored =
        c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
        c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
    return t.key_set() - kIgnored;
}

const c10::TensorImpl& impl_of(PyObject* tensor) {
    return *THPVariable_Unpack(tensor).unsafeGetTensorImpl();
}

bool has_sizes(const c10::TensorImpl& t) { return t.layout() == c10::kStrided && !t.is_nested(); }

/// Equality of values of one exact type (see `is_value`); runs no Python.
bool equal_constants(PyObject* a, PyObject* b) {
    if (a == b) return true;
    if (Py_TYPE(a) != Py_TYPE(b)) return false;
    if (PySlice_Check(a)) {
        const auto* x = reinterpret_cast<PySliceObject*>(a);
        const auto* y = reinterpret_cast<PySliceObject*>(b);
        return equal_constants(x->start, y->start) && equal_constants(x->stop, y->stop) &&
               equal_constants(x->step, y->step);
    }
    if (THPDevice_Check(a))
        return reinterpret_cast<THPDevice*>(a)->device == reinterpret_cast<THPDevice*>(b)->device;
    if (PyFloat_Check(a)) {  // NaN equals itself here, and 0.0 differs from -0.0
        const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return std::memcmp(&x, &y, sizeof x) == 0;
    }
    if (PyComplex_CheckExact(a)) {
        const Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
        return std::memcmp(&x, &y, sizeof x) == 0;
    }
    // Of the type itself, whatever a subclass compares.
    const richcmpfunc compare = PyLong_Check(a)      ? PyLong_Type.tp_richcompare
                                : PyUnicode_Check(a) ? PyUnicode_Type.tp_richcompare
                                                     : Py_TYPE(a)->tp_richcompare;
    const Ref equal = Ref::steal(compare == nullptr ? nullptr : compare(a, b, Py_EQ));
    if (!equal) PyErr_Clear();
    return equal.get() == Py_True;
}

bool has_keys(PyObject* dict, PyObject* keys) {
    const Py_ssize_t size = PyTuple_GET_SIZE(keys);
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != size) return false;
    Py_ssize_t n = 0;
    const auto is_next = [&](PyObject* key) {
        if (n == size) return false;
        PyObject* was = PyTuple_GET_ITEM(keys, n++);
        return key == was || (is_plain_constant(key) && equal_constants(key, was));
    };
    return all_keys(dict, is_next) && n == size;
}

bool has_members(PyObject* set, PyObject* members) {
    if (!PyAnySet_Check(set) || PySet_GET_SIZE(set) != PyTuple_GET_SIZE(members)) return false;
    Py_ssize_t position = 0, n = 0;
    PyObject* item = nullptr;
    Py_hash_t hash = 0;
    while (_PySet_NextEntry(set, &position, &item, &hash)) {
        PyObject* was = PyTuple_GET_ITEM(members, n++);
        if (item != was && !(is_plain_constant(item) && equal_constants(item, was))) return false;
    }
    return true;
}

void say(std::string* failure, const GuardSet& guards, std::int32_t place,
         const std::string& what) {
    if (failure != nullptr) *failure = guards.path(place) + ": " + what;
}

}  // namespace

bool is_plain_constant(PyObject* o) {
    if (o == nullptr) return false;
    if (o == Py_None || o == Py_True || o == Py_False || o == Py_Ellipsis || o == Py_NotImplemented)
        return true;
    return PyLong_CheckExact(o) || PyUnicode_CheckExact(o) || PyFloat_CheckExact(o) ||
           PyBytes_CheckExact(o) || PyComplex_CheckExact(o);
}

bool is_value(PyObject* o) {
    if (PySlice_Check(o)) {
        const auto* s = reinterpret_cast<PySliceObject*>(o);
        return is_plain_constant(s->start) && is_plain_constant(s->stop) &&
               is_plain_constant(s->step);
    }
    return is_plain_constant(o) || PyLong_Check(o) || PyUnicode_Check(o) || PyFloat_Check(o) ||
           PyRange_Check(o) || THPDevice_Check(o);
}

unsigned type_version(PyTypeObject* type) {
    return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
}

// ---- tensors ----

TensorFacts TensorFacts::of(PyObject* tensor) {
    const c10::TensorImpl& t = impl_of(tensor);
    TensorFacts f;
    f.type = Py_TYPE(tensor);
    if (has_sizes(t)) {
        f.sizes = t.sizes().vec();
        f.strides = t.strides().vec();
    }
    f.dtype = c10::typeMetaToScalarType(t.dtype());
    f.device = t.device();
    f.keys = meaning_keys(t);
    f.requires_grad = t.requires_grad();
    f.leaf = is_leaf(t);
    return f;
}

bool TensorFacts::holds(PyObject* tensor) const {
    if (Py_TYPE(tensor) != type) return false;
    const c10::TensorImpl& t = impl_of(tensor);
    return t.dtype() == c10::scalarTypeToTypeMeta(dtype) && meaning_keys(t) == keys &&
           (!has_sizes(t) || (any_size && t.dim() == static_cast<std::int64_t>(sizes.size())) ||
            (t.sizes() == c10::IntArrayRef(sizes) && t.strides() == c10::IntArrayRef(strides))) &&
           t.device() == device && t.requires_grad() == requires_grad &&
           (!requires_grad || is_leaf(t) == leaf) && holds_hooks(tensor);
}

bool TensorFacts::holds_hooks(PyObject* tensor) const {
    return !unhooked || !has_hooks(THPVariable_Unpack(tensor));
}

std::string TensorFacts::difference(PyObject* tensor) const {
    if (tensor == nullptr || Py_TYPE(tensor) != type)
        return std::string("is no longer a ") + type->tp_name;
    const TensorFacts now = of(tensor);
    if (now.dtype != dtype)
        return std::string("dtype was ") + c10::toString(dtype) + ", is " +
               c10::toString(now.dtype);
    if (now.device != device) return "device was " + device.str() + ", is " + now.device.str();
    if (now.sizes != sizes)
        return "sizes were " + text_of_sizes(sizes) + ", are " + text_of_sizes(now.sizes);
    if (now.strides != strides)
        return "strides were " + text_of_sizes(strides) + ", are " + text_of_sizes(now.strides);
    if (now.requires_grad != requires_grad)
        return std::string("requires_grad was ") + (requires_grad ? "True" : "False");
    if (now.leaf != leaf) return std::string("is_leaf was ") + (leaf ? "True" : "False");
    if (!holds_hooks(tensor)) return "has hooks on its gradient now";
    return "layout or dispatch keys differ";
}

// ---- demands ----

Demand demand_for(PyObject* value, bool dynamic) {
    Demand d;
    if (value == nullptr) {
        d.check = Check::Absent;
    } else if (is_value(value) && (dynamic || is_plain_constant(value))) {
        d.check = Check::Equal;
        d.expected = Ref::borrow(value);
    } else if (THPVariable_CheckExact(value)) {
        d.check = Check::Tensor;
        d.tensor = std::make_unique<TensorFacts>(TensorFacts::of(value));
    } else if (!dynamic) {
        d.expected = Ref::borrow(value);
    } else {
        PyTypeObject* type = Py_TYPE(value);
        d.check = Check::Type;
        if (PyTuple_Check(value) || PyList_CheckExact(value)) {
            d.check = Check::Sized;
            d.length = Py_SIZE(value);
        } else if (is_deque(value)) {
            d.check = Check::Sized;
            d.length = Py_SIZE(value);
            d.most = most_of_deque(value);
        }
        d.expected = Ref::borrow(reinterpret_cast<PyObject*>(type));
    }
    return d;
}

bool Demand::holds(PyObject* value) const {
    if (value == nullptr) return check == Check::Absent;
    switch (check) {
        case Check::Identity:
            return value == expected.get();
        case Check::Equal:
            return equal_constants(value, expected.get());
        case Check::Type:
            return reinterpret_cast<PyObject*>(Py_TYPE(value)) == expected.get();
        case Check::Sized:
            return reinterpret_cast<PyObject*>(Py_TYPE(value)) == expected.get() &&
                   Py_SIZE(value) == length &&
                   (!most || equal_constants(most_of_deque(value).get(), most.get()));
        case Check::Tensor:
            return tensor->holds(value);
        case Check::Absent:
            return false;
        case Check::Keys:
            return has_keys(value, expected.get());
        case Check::Members:
            return has_members(value, expected.get());
        case Check::Integer:
            return PyLong_CheckExact(value);
        case Check::Float:
            return PyFloat_CheckExact(value);
    }
    return false;
}

std::string Demand::difference(PyObject* value) const {
    switch (check) {
        case Check::Identity:
            return "was another object (" + text_of_value(expected.get()) + ")";
        case Check::Equal:
            return "was " + text_of_value(expected.get()) + ", is " + text_of_value(value);
        case Check::Type:
            return "had the type " + text_of_value(expected.get()) + ", is " + text_of_value(value);
        case Check::Sized:
            return "had the type " + text_of_value(expected.get()) + " and " +
                   std::to_string(length) + " items, is " + text_of_value(value);
        case Check::Tensor:
            return tensor->difference(value);
        case Check::Absent:
            return "was absent, is " + text_of_value(value);
        case Check::Keys:
            return "had other keys";
        case Check::Members:
            return "had other members";
        case Check::Integer:
            return "was an int, is " + text_of_value(value);
        case Check::Float:
            return "was a float, is " + text_of_value(value);
    }
    return {};
}

// ---- the whole set ----

Ref gradient_of(PyObject* tensor) {
    const at::Tensor& t = THPVariable_Unpack(tensor).grad();
    return t.defined() ? Ref::steal(THPVariable_Wrap(t)) : Ref::borrow(Py_None);
}

void GuardSet::drop_all() {
    const GuardSet gone = std::exchange(*this, GuardSet());
    modes = gone.modes;
}

bool GuardSet::take(PinnedRead& read, PyObject* value) {
    if (!read.demand.holds(value)) return false;
    if (read.tensor < 0) return true;
    PinnedTensor& tensor = tensors[static_cast<std::size_t>(read.tensor)];
    if (tensor.fixed && tensor.tensor.get() != value) return false;
    tensor.tensor = Ref::borrow(value);
    return true;
}

bool GuardSet::recheck_keys(const PinnedDict& d, std::string* failure) const {
    if (!d.whole || has_keys(d.dict.get(), d.keys.get())) return true;
    say(failure, *this, d.place, "its keys are others, or their order is");
    return false;
}

bool GuardSet::recheck(PinnedDict& d, std::string* failure) {
    if (d.location != nullptr && *d.location == nullptr) return false;
    PyObject* dict = d.location != nullptr ? *d.location : d.dict.get();
    if (dict != d.dict.get()) {
        if (!PyDict_CheckExact(dict)) return false;
        d.dict = Ref::borrow(dict);
    }
    if (!recheck_keys(d, failure)) return false;
    for (PinnedRead& read : d.reads) {
        PyObject* value = PyDict_GetItemWithError(dict, read.key.get());
        if (value == nullptr) PyErr_Clear();
        if (!take(read, value)) {
            if (failure != nullptr)
                *failure = path(d.place) + "[" + text_of_value(read.key.get()) +
                           "]: " + read.demand.difference(value);
            return false;
        }
    }
    d.version = version_of(dict);
    return true;
}

bool GuardSet::recheck(PinnedList& l, std::string* failure) {
    const auto size = static_cast<std::size_t>(PyList_GET_SIZE(l.list.get()));
    if (size != l.items.size()) {
        say(failure, *this, l.place, "its length is another");
        return false;
    }
    for (std::size_t i = 0; i < size; ++i) {
        PyObject* item = PyList_GET_ITEM(l.list.get(), static_cast<Py_ssize_t>(i));
        if (item == l.items[i].get()) continue;
        if (!take(l.reads[i], item)) {
            say(failure, *this, l.place,
                "item " + std::to_string(i) + " " + l.reads[i].demand.difference(item));
            return false;
        }
        l.items[i] = Ref::borrow(item);
    }
    return true;
}

bool GuardSet::recheck(PinnedType& t, std::string* failure) {
    auto* type = reinterpret_cast<PyTypeObject*>(t.type.get());
    for (const auto& [name, value] : t.lookups)
        if (_PyType_Lookup(type, name.get()) != value.get()) {
            if (failure != nullptr)
                *failure = std::string(type->tp_name) + ": attribute " + text_of_value(name.get()) +
                           " of the class is another";
            return false;
        }
    t.version = type_version(type);
    return true;
}

bool GuardSet::recheck(PinnedFunction& f, std::string* failure) {
    if (failure != nullptr)
        *failure = "a function's code or defaults are others: " +
                   std::string(PyUnicode_AsUTF8(
                       reinterpret_cast<PyFunctionObject*>(f.function.get())->func_qualname));
    return false;
}

bool GuardSet::recheck(PinnedPointer& p, std::string* failure) {
    PyObject* value = *p.location;
    if (!take(p.read, value)) {
        say(failure, *this, p.place, p.read.demand.difference(value));
        return false;
    }
    if (p.read.demand.check == Check::Equal) p.read.demand.expected = Ref::borrow(value);
    p.current = value;
    return true;
}

unsigned long long registrations() {
    static PyObject* const token = [] {
        const Ref module = Ref::steal(PyImport_ImportModule("_abc"));
        return module ? PyObject_GetAttrString(module.get(), "get_cache_token") : nullptr;
    }();
    const Ref count = token == nullptr ? Ref() : Ref::steal(PyObject_CallNoArgs(token));
    const unsigned long long n = count ? PyLong_AsUnsignedLongLong(count.get()) : 0;
    if (PyErr_Occurred()) PyErr_Clear();
    return n;
}

bool GuardSet::check_pinned(std::string* failure) {
    if (registrations && *registrations != capture::registrations()) {
        if (failure != nullptr) *failure = "a class was registered with an abstract base class";
        return false;
    }
    if (warning_filters && !has_warning_filters(warning_filters.get())) {
        if (failure != nullptr) *failure = "the filters of warnings are others";
        return false;
    }
    for (PinnedDict& d : dicts) {
        const PyObject* dict = d.location != nullptr ? *d.location : d.dict.get();
        const bool same = dict == d.dict.get() && version_of(dict) == d.version;
        if (same ? d.ordered && !recheck_keys(d, failure) : !recheck(d, failure)) return false;
    }
    for (PinnedType& t : types) {
        if (type_version(reinterpret_cast<PyTypeObject*>(t.type.get())) != t.version ||
            t.version == 0)
            if (!recheck(t, failure)) return false;
    }
    for (PinnedFunction& f : functions) {
        const auto* function = reinterpret_cast<PyFunctionObject*>(f.function.get());
        if (function->func_code != f.code.get() || function->func_defaults != f.defaults.get() ||
            function->func_kwdefaults != f.keyword_defaults.get())
            if (!recheck(f, failure)) return false;
    }
    for (PinnedPointer& p : pointers)
        if (*p.location != p.current && !recheck(p, failure)) return false;
    for (PinnedList& l : lists) {
        const auto size = static_cast<std::size_t>(PyList_GET_SIZE(l.list.get()));
        static_assert(sizeof(Ref) == sizeof(PyObject*));
        const bool same = size == l.items.size() &&
                          (size == 0 || std::memcmp(&PyList_GET_ITEM(l.list.get(), 0),
                                                    l.items.data(), size * sizeof(Ref)) == 0);
        if (!same && !recheck(l, failure)) return false;
    }
    for (const PinnedTensor& t : tensors)
        if (t.covered ? !t.facts.holds_hooks(t.tensor.get()) : !t.facts.holds(t.tensor.get())) {
            say(failure, *this, t.place, t.facts.difference(t.tensor.get()));
            return false;
        }
    return true;
}

/// An answer from the cache runs no Python; another is what eager would have computed here.
bool GuardSet::repeat_cached_calls(std::string* failure) {
    for (CachedCall& c : cached_calls) {
        const Ref result =
            Ref::steal(PyObject_Call(c.callable.get(), c.arguments.get(), c.names.get()));
        if (!result) PyErr_Clear();
        if (!take(c.read, result.get())) {
            say(failure, *this, c.place, c.read.demand.difference(result.get()));
            return false;
        }
    }
    return true;
}

bool GuardSet::check(std::span<PyObject* const> slots, Values& values, std::string* failure) {
    const Modes now = Modes::now();
    if (now != modes) {
        if (failure != nullptr) *failure = "modes: " + now.difference(modes) + " was another";
        return false;
    }
    for (const Node& n : nodes) {
        PyObject* value = nullptr;
        PyObject* parent = n.parent < 0 ? nullptr : values[static_cast<std::size_t>(n.parent)];
        Ref made;  // nothing else may hold the Python object
        switch (n.reach) {
            case Reach::Slot:
                value = slots[static_cast<std::size_t>(n.index)];
                break;
            case Reach::DictItem:
                value = PyDict_GetItemWithError(parent, n.key);
                if (value == nullptr) PyErr_Clear();
                break;
            case Reach::InstanceDict: {
                PyObject** location = _PyObject_GetDictPtr(parent);
                value = location == nullptr ? nullptr : *location;
                break;
            }
            case Reach::Member:
                value = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(parent) + n.index);
                break;
            case Reach::Item:
                value = PyTuple_Check(parent)  ? PyTuple_GET_ITEM(parent, n.index)
                        : PyList_Check(parent) ? PyList_GET_ITEM(parent, n.index)
                                               : item_of_deque(parent, n.index);
                break;
            case Reach::Contents:
                value = PyCell_GET(parent);
                break;
            case Reach::Itself:
                value = parent;
                break;
            case Reach::Constant:
                value = n.key;
                break;
            case Reach::Variable:
                if (PyContextVar_Get(n.key, nullptr, &value) != 0) PyErr_Clear();
                Py_XDECREF(value);  // the context holds it
                break;
            case Reach::Gradient:
                made = gradient_of(parent != nullptr
                                       ? parent
                                       : tensors[static_cast<std::size_t>(n.index)].tensor.get());
                value = made.get();
                break;
            case Reach::ThreadDict:
                value = dict_of_thread(parent);
                break;
            case Reach::Referent:
                value = PyWeakref_GET_OBJECT(parent);
                break;
            case Reach::Ahead: {
                bool broken = false;
                made = item_ahead(parent, n.index, &broken);
                value = made.get();
                if (!broken) break;
                say(failure, *this, n.place, "cannot go on, as what it iterates over has changed");
                return false;
            }
            case Reach::AheadKey:
                made = key_ahead(parent, n.index);
                value = made.get();
                break;
            case Reach::Moved:
                value = moved_by(parent, n.index);
                break;
            case Reach::Count:
                made = count_of(parent, n.index);
                value = made.get();
                break;
            case Reach::Iterated:
                value = iterated(parent);
                break;
            case Reach::Lookup:
            case Reach::CachedResult:
                break;
        }
        if (!n.demand.holds(value)) {
            say(failure, *this, n.place, n.demand.difference(value));
            return false;
        }
        values.push(value);
    }
    for (const Relation& r : relations) {
        PyObject* other =
            r.second >= 0 ? values[static_cast<std::size_t>(r.second)] : r.object.get();
        if ((values[static_cast<std::size_t>(r.first)] == other) != r.same) {
            say(failure, *this, nodes[static_cast<std::size_t>(r.first)].place,
                r.same ? "was the same object as another" : "was another object");
            return false;
        }
    }
    if (!changed.holds(values.all())) {
        if (failure != nullptr) *failure = "an object that is changed is another one of the call";
        return false;
    }
    return check_pinned(failure) &&
           (sizes_ == nullptr ||
            sizes_->check(values.all(), floats, values.symbols, values.floats, failure)) &&
           (floats.empty() ||
            floats.check(values.all(), sizes_.get(), values.symbols, values.floats, failure)) &&
           (cached_calls.empty() || repeat_cached_calls(failure));
}

}  // namespace ingot::capture
