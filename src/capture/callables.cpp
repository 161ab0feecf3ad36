// The table of C callables; see callables.h.
#include "capture/callables.h"

#include <torch/csrc/autograd/python_variable.h>

#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "capture/objects.h"
#include "capture/ref.h"
#include "capture/tensor_callables.h"

namespace ingot::capture {
namespace {

using Names = std::unordered_set<std::string_view>;
using Table = std::unordered_map<std::string_view, CallKind>;

void put(Table& table, CallKind kind, std::initializer_list<std::string_view> names) {
    for (std::string_view name : names) table[name] = kind;
}

const Table& builtins() {
    static const Table table = [] {
        Table t;
        put(t, CallKind::Pure,
            {"len",  "abs", "all",  "any",        "bin",        "callable", "chr", "divmod",
             "hash", "hex", "iter", "isinstance", "issubclass", "max",      "min", "next",
             "oct",  "ord", "pow",  "repr",       "round",      "sorted",   "sum", "ascii"});
        put(t, CallKind::Deep, {"format"});
        put(t, CallKind::GetAttr, {"getattr", "hasattr"});
        put(t, CallKind::SetAttr, {"setattr", "delattr"});
        put(t, CallKind::Vars, {"vars"});
        put(t, CallKind::Frames, {"locals", "globals", "dir", "eval", "exec", "breakpoint"});
        return t;
    }();
    return table;
}

/// What torch.func is made of, by full name: see transforms.cpp.
const Names& levels() {
    static const Names names = {
        "torch._C._functorch._vmap_increment_nesting",
        "torch._C._functorch._vmap_decrement_nesting",
        "torch._C._functorch._grad_increment_nesting",
        "torch._C._functorch._grad_decrement_nesting",
        "torch._C._functorch._jvp_increment_nesting",
        "torch._C._functorch._jvp_decrement_nesting",
        "torch._C._functorch._add_batch_dim",
        "torch._C._functorch._remove_batch_dim",
        "torch._C._functorch._unwrap_batched",
        "torch._C._functorch._wrap_for_grad",
        "torch._C._functorch._unwrap_for_grad",
        "torch._C._functorch.get_unwrapped",
        "torch._C._functorch.is_batchedtensor",
        "torch._C._functorch.is_gradtrackingtensor",
        "torch._C._functorch.is_functionaltensor",
        "torch._C._functorch.is_functorch_wrapped_tensor",
        "torch._C._functorch.is_dead_tensor_wrapper",
        "torch._C._functorch.maybe_get_level",
        "torch._C._functorch.maybe_get_bdim",
        "torch._C._functorch.current_level",
        "torch._C._functorch.get_inplace_requires_grad_allowed",
        "torch._C._functorch.set_inplace_requires_grad_allowed",
        "torch._C._dynamo.autograd_compiler.set_autograd_compiler",
        "torch._C._enter_dual_level",
        "torch._C._exit_dual_level",
        "torch._C._is_fwd_grad_enabled",
        "torch._C._set_fwd_grad_enabled",
        "torch._C._autograd._saved_tensors_hooks_get_disabled_error_message",
        "torch._C._autograd._saved_tensors_hooks_disable",
        "torch._C._autograd._saved_tensors_hooks_enable"};
    return names;
}

const Table& torch_c() {
    static const Table table = [] {
        Table t;
        put(t, CallKind::Shallow,
            {"is_grad_enabled",
             "is_inference_mode_enabled",
             "is_autocast_enabled",
             "is_autocast_cpu_enabled",
             "is_any_autocast_enabled",
             "get_autocast_dtype",
             "get_autocast_cpu_dtype",
             "get_autocast_gpu_dtype",
             "is_autocast_cache_enabled",
             "_get_tracing_state",
             "_is_tracing",
             "_log_api_usage_once",
             "_increment_version",
             "_has_torch_function",
             "_has_torch_function_unary",
             "_has_torch_function_variadic",
             "_is_torch_function_enabled",
             "_is_torch_function_all_disabled",
             "_is_torch_function_mode_enabled",
             "_len_torch_function_stack",
             "_get_default_device",
             "get_default_dtype",
             "_get_deterministic_algorithms",
             "_is_any_true",
             "_are_functorch_transforms_active",
             "_functorch_stack_len",
             "_is_key_in_tls",
             "_get_privateuse1_backend_name",
             "_cuda_getDeviceCount",
             "_jit_is_script_object",
             "is_autocast_available",
             "_is_autocast_available",
             "_is_functorch_wrapped_tensor"});
        // Switches of the process, which replays ask again.
        put(t, CallKind::Cached,
            {"_get_cudnn_enabled", "_get_mkldnn_enabled", "_get_math_sdp_enabled",
             "_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_cudnn_sdp_enabled"});
        put(t, CallKind::Modes,
            {"_set_grad_enabled", "set_autocast_enabled", "set_autocast_cpu_enabled",
             "set_autocast_dtype", "set_autocast_cpu_dtype", "set_autocast_cache_enabled",
             "autocast_increment_nesting", "autocast_decrement_nesting", "clear_autocast_cache"});
        return t;
    }();
    return table;
}

const Table& method_kinds() {
    // "type.method" of Python's own types.
    static const Table table = [] {
        Table t;
        put(t, CallKind::Mutator,
            {"list.append",
             "list.extend",
             "list.insert",
             "list.pop",
             "list.remove",
             "list.clear",
             "list.reverse",
             "list.sort",
             "list.__setitem__",
             "list.__delitem__",
             "list.__iadd__",
             "list.__imul__",
             "dict.update",
             "dict.popitem",
             "dict.clear",
             "dict.setdefault",
             "dict.pop",
             "dict.__ior__",
             "set.add",
             "set.update",
             "set.discard",
             "set.remove",
             "set.pop",
             "set.clear",
             "set.__ior__",
             "set.__isub__",
             "set.__iand__",
             "set.intersection_update",
             "set.difference_update",
             "set.symmetric_difference_update",
             "set.__ixor__",
             "collections.OrderedDict.move_to_end",
             "collections.defaultdict.__missing__",
             "collections.deque.append",
             "collections.deque.appendleft",
             "collections.deque.extend",
             "collections.deque.extendleft",
             "collections.deque.insert",
             "collections.deque.pop",
             "collections.deque.popleft",
             "collections.deque.remove",
             "collections.deque.clear",
             "collections.deque.reverse",
             "collections.deque.rotate",
             "collections.deque.__setitem__",
             "collections.deque.__delitem__",
             "collections.deque.__iadd__",
             "collections.deque.__imul__"});
        put(t, CallKind::GetItem,
            {"dict.get", "dict.__getitem__", "dict.__contains__", "list.__getitem__",
             "tuple.__getitem__", "mappingproxy.get"});
        put(t, CallKind::SetItem, {"dict.__setitem__", "dict.__delitem__"});
        put(t, CallKind::GetAttr, {"object.__getattribute__", "module.__getattribute__"});
        put(t, CallKind::SetAttr, {"object.__setattr__", "object.__delattr__"});
        put(t, CallKind::State,
            {"object.__reduce__", "object.__reduce_ex__", "object.__getstate__", "object.__dir__"});
        put(t, CallKind::Shallow,
            {"object.__new__",
             "object.__init__",
             "object.__init_subclass__",
             "object.__format__",
             "object.__class__",
             "object.__subclasshook__",
             "type.__instancecheck__",
             "type.__subclasscheck__",
             "type.mro",
             "type.__call__",
             "dict.__new__",
             "OrderedDict.__new__",
             "list.__new__",
             "set.__new__",
             "BaseException.__init__",
             "BaseException.__new__",
             "Exception.__init__",
             "BaseException.with_traceback",
             "function.__get__",
             "property.__get__",
             "property.__init__",
             "staticmethod.__get__",
             "classmethod.__get__"});
        put(t, CallKind::Deep,
            {"list.__eq__", "list.__ne__", "list.__lt__", "list.__contains__", "list.index",
             "list.count", "tuple.__eq__", "tuple.index", "tuple.count", "tuple.__contains__",
             "dict.__eq__", "tuple.__hash__"});
        // Everything else of these types reads its container and makes something new. Their
        // `__init__` reads what it is given, and so does `__new__` of those that never change.
        put(t, CallKind::Pure,
            {"dict.__init__", "collections.OrderedDict.__init__", "list.__init__", "set.__init__",
             "tuple.__new__", "frozenset.__new__", "float.__new__", "int.__new__", "str.__new__",
             "bytes.__new__", "complex.__new__"});
        return t;
    }();
    return table;
}

const Names& value_types() {
    // Types whose remaining methods only read themselves and their arguments.
    static const Names names = {"str",
                                "bytes",
                                "int",
                                "float",
                                "bool",
                                "complex",
                                "tuple",
                                "list",
                                "dict",
                                "set",
                                "frozenset",
                                "range",
                                "slice",
                                "OrderedDict",
                                "odict_keys",
                                "odict_values",
                                "odict_items",
                                "collections.OrderedDict",
                                "dict_keys",
                                "dict_values",
                                "dict_items",
                                "mappingproxy",
                                "collections.deque",
                                "collections.defaultdict",
                                "re.Pattern",
                                "re.Match",
                                "torch.Size",
                                "torch.finfo",
                                "torch.iinfo",
                                "torch.device",
                                "torch.dtype",
                                "object",
                                "type",
                                "generator",
                                "list_iterator",
                                "tuple_iterator",
                                "code",
                                "builtin_function_or_method",
                                "enumerate",
                                "zip",
                                "map",
                                "filter",
                                "reversed",
                                "functools.partial"};
    return names;
}

const Names& pure_modules() {
    static const Names names = {"math",         "cmath", "_operator",   "itertools", "_functools",
                                "_collections", "_abc",  "_bisect",     "_heapq",    "_struct",
                                "_string",      "_stat", "unicodedata", "_sre",      "_typing"};
    return names;
}

/// Whether a function of such a module changes its first argument.
bool changes_its_first(std::string_view full) {
    static const Names names = {
        "_bisect.insort_left", "_bisect.insort_right", "_bisect.insort",
        "_operator.setitem",   "_operator.delitem",    "_collections._count_elements",
        "_operator.iadd",      "_operator.iand",       "_operator.iconcat",
        "_operator.ifloordiv", "_operator.ilshift",    "_operator.imatmul",
        "_operator.imod",      "_operator.imul",       "_operator.ior",
        "_operator.ipow",      "_operator.irshift",    "_operator.isub",
        "_operator.itruediv",  "_operator.ixor"};
    return full.starts_with("_heapq.") || names.contains(full);
}

const Names& torch_modules() {
    static const Names names = {"torch._C._nn",      "torch._C._fft",    "torch._C._linalg",
                                "torch._C._special", "torch._C._sparse", "torch._C._nested"};
    return names;
}

const Names& torch_functions() {
    static const Names names = {"_scatter", "_gather", "_group_tensors_by_device_and_dtype",
                                "redispatch_boxed"};
    return names;
}

std::string_view view_of(PyObject* text) {
    const char* s = text == nullptr || !PyUnicode_Check(text) ? nullptr : PyUnicode_AsUTF8(text);
    return s == nullptr ? std::string_view() : s;
}

CallKind of_method(const std::string& type, const std::string& name) {
    const std::string key = type + "." + name;
    if (const auto found = method_kinds().find(key); found != method_kinds().end())
        return found->second;
    if (type == "collections.OrderedDict" || type == "OrderedDict") {
        const auto as_dict = method_kinds().find("dict." + name);
        if (as_dict != method_kinds().end()) return as_dict->second;
    }
    // Changing a fresh one of these is nobody's business; the caller checks where it is from.
    return value_types().contains(type) ? CallKind::Pure : CallKind::Unknown;
}

bool is_tensor_class(PyTypeObject* type) {
    static PyTypeObject* const base = reinterpret_cast<PyTypeObject*>(THPVariableClass)->tp_base;
    return type == base || type == reinterpret_cast<PyTypeObject*>(THPVariableClass);
}

CallClass of_tensor_method(const std::string& name) {
    return {is_data_function(name) ? CallKind::Data : CallKind::Torch, "Tensor." + name};
}

/// The class whose C code a method bound to an instance of `type` is: classes inherit methods, and
/// the name of a subclass says nothing about them. nullptr: none of them has it.
PyTypeObject* owner_of_method(PyTypeObject* type, const PyMethodDef* method) {
    PyObject* mro = type->tp_mro;
    for (Py_ssize_t i = 0; mro != nullptr && i < PyTuple_GET_SIZE(mro); ++i) {
        auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
        for (const PyMethodDef* m = base->tp_methods; m != nullptr && m->ml_name != nullptr; ++m)
            if (m == method) return base;
    }
    return nullptr;
}

CallClass of_builtin(PyObject* callable) {
    auto* f = reinterpret_cast<PyCFunctionObject*>(callable);
    const std::string name = f->m_ml->ml_name;
    PyObject* self = f->m_self;
    // Functions of modules name their module; pybind11's have something else for a self.
    const bool of_module = f->m_module != nullptr && PyUnicode_Check(f->m_module) &&
                           (self == nullptr || (!PyType_Check(self) && !is_tensor(self)));
    if (self != nullptr && !PyModule_Check(self) && !of_module) {
        if (PyType_Check(self)) {
            const std::string owner = reinterpret_cast<PyTypeObject*>(self)->tp_name;
            if (owner == "torch._C._VariableFunctionsClass" ||
                owner == "torch._C._VariableFunctions")
                return {is_data_function(name) ? CallKind::Data : CallKind::Torch, "torch." + name};
            if (name == "apply" || owner.find("_FunctionBase") != std::string::npos)
                return {CallKind::Torch, owner + "." + name};
            if (is_tensor_class(reinterpret_cast<PyTypeObject*>(self)))
                return of_tensor_method(name);
            if (name == "__new__") {
                const auto found = method_kinds().find(owner + ".__new__");
                return {found != method_kinds().end() ? found->second : CallKind::Shallow,
                        owner + ".__new__"};
            }
            if (owner_of_method(Py_TYPE(self), f->m_ml) == &PyType_Type)  // of any metaclass
                return {of_method("type", name), "type." + name};
            return {of_method(owner, name), owner + "." + name};
        }
        if (is_tensor(self)) return of_tensor_method(name);
        const PyTypeObject* owner = owner_of_method(Py_TYPE(self), f->m_ml);
        const std::string type = (owner != nullptr ? owner : Py_TYPE(self))->tp_name;
        if (levels().contains(type + "." + name)) return {CallKind::Level, type + "." + name};
        return {of_method(type, name), type + "." + name};
    }
    const std::string_view module = view_of(f->m_module);
    if (module == "builtins") {
        const auto found = builtins().find(name);
        return {found == builtins().end() ? CallKind::Unknown : found->second, name};
    }
    const std::string full = std::string(module) + "." + name;
    if (torch_modules().contains(module)) return {CallKind::Torch, full};
    if (module.starts_with("torch._ops.")) return {CallKind::Torch, full};
    if (levels().contains(full)) return {CallKind::Level, full};
    if (module == "torch._C" || module == "torch") {
        if (torch_functions().contains(name)) return {CallKind::Torch, full};
        const auto found = torch_c().find(name);
        if (found != torch_c().end()) return {found->second, full};
        return {CallKind::Unknown, full};
    }
    if (module == "torch._C._functorch" &&
        (name == "maybe_current_level" || name == "unwrap_if_dead"))
        return {CallKind::Shallow, full};
    if (name == "_abc_register" || name.starts_with("_reset")) return {CallKind::Unknown, full};
    if (changes_its_first(full)) return {CallKind::Mutator, full};
    if (pure_modules().contains(module)) return {CallKind::Deep, full};
    if (full == "_warnings.warn") return {CallKind::Warning, full};
    if (module == "sys") {
        static const Names frames = {"_getframe", "_getframemodulename", "_current_frames",
                                     "exc_info",  "exception",           "settrace",
                                     "setprofile"};
        if (frames.contains(name)) return {CallKind::Frames, full};
        if (name == "intern" || name == "getrecursionlimit") return {CallKind::Shallow, full};
    }
    return {CallKind::Unknown, module.empty() ? name : full};
}

}  // namespace

CallClass classify(PyObject* callable) {
    PyTypeObject* type = Py_TYPE(callable);
    if (PyCFunction_Check(callable)) return of_builtin(callable);
    if (type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type ||
        type == &PyClassMethodDescr_Type) {
        auto* d = reinterpret_cast<PyDescrObject*>(callable);
        const std::string name(view_of(d->d_name));
        if (is_tensor_class(d->d_type)) return of_tensor_method(name);
        const std::string owner = d->d_type->tp_name;
        return {of_method(owner, name), owner + "." + name};
    }
    if (type == &_PyMethodWrapper_Type) {
        Ref self = Ref::steal(PyObject_GetAttrString(callable, "__self__"));
        Ref name = Ref::steal(PyObject_GetAttrString(callable, "__name__"));
        Ref owner = Ref::steal(PyObject_GetAttrString(callable, "__objclass__"));
        if (!self || !name || !owner || !PyType_Check(owner.get())) {
            PyErr_Clear();
            return {};
        }
        if (is_tensor(self.get())) return of_tensor_method(std::string(view_of(name.get())));
        const std::string o = reinterpret_cast<PyTypeObject*>(owner.get())->tp_name;
        const std::string n(view_of(name.get()));
        return {of_method(o, n), o + "." + n};
    }
    const std::string_view type_name = type->tp_name;
    if (type_name == "functools._lru_cache_wrapper") return {CallKind::Cached, "a cached function"};
    if (type_name == "operator.itemgetter" || type_name == "operator.attrgetter" ||
        type_name == "operator.methodcaller")
        return {CallKind::Unknown, std::string(type_name)};
    return {CallKind::Unknown, std::string("an object of type ") + type->tp_name};
}

CallKind classify_class(PyTypeObject* type) {
    static const Table table = [] {
        Table t;
        put(t, CallKind::Pure,
            {"tuple",
             "list",
             "dict",
             "set",
             "frozenset",
             "int",
             "float",
             "bool",
             "str",
             "bytes",
             "complex",
             "range",
             "slice",
             "enumerate",
             "zip",
             "map",
             "filter",
             "reversed",
             "collections.OrderedDict",
             "collections.deque",
             "collections.defaultdict",
             "itertools.chain",
             "itertools.count",
             "itertools.repeat",
             "itertools.product",
             "itertools.islice",
             "itertools.zip_longest",
             "itertools.accumulate",
             "itertools.combinations",
             "itertools.permutations",
             "itertools.starmap",
             "itertools.takewhile",
             "itertools.dropwhile",
             "itertools.groupby",
             "itertools.cycle",
             "types.GenericAlias",
             "torch.Size",
             "torch.finfo",
             "torch.iinfo",
             "torch.device"});
        put(t, CallKind::Shallow,
            {"object", "super", "type", "property", "staticmethod", "classmethod",
             "functools.partial", "method", "cell", "types.SimpleNamespace", "mappingproxy",
             "operator.itemgetter", "operator.attrgetter"});
        return t;
    }();
    const auto found = table.find(type->tp_name);
    if (found != table.end()) return found->second;
    if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(PyExc_BaseException)))
        return CallKind::Shallow;
    return CallKind::Unknown;
}

}  // namespace ingot::capture
