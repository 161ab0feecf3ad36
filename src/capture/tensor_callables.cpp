// The tables of tensors' methods and attributes; see tensor_callables.h and callables.h.
#include "capture/tensor_callables.h"

#include <string>
#include <unordered_set>

#include "capture/callables.h"
#include "capture/objects.h"

namespace ingot::capture {
namespace {

using Names = std::unordered_set<std::string_view>;

}  // namespace

bool is_data_function(std::string_view name) {
    static const Names names = {"item",
                                "tolist",
                                "numpy",
                                "data_ptr",
                                "const_data_ptr",
                                "untyped_storage",
                                "storage",
                                "_typed_storage",
                                "__array__",
                                "__array_wrap__",
                                "__dlpack__",
                                "__dlpack_device__",
                                "share_memory_",
                                "is_shared",
                                "pin_memory",
                                "apply_",
                                "map_",
                                "map2_",
                                "set_",
                                "resize_",
                                "resize_as_",
                                "requires_grad_",
                                "retain_grad",
                                "detach_",
                                "_is_view",
                                "is_set_to",
                                "storage_offset",
                                "_set_grad_fn",
                                "_make_subclass",
                                "_make_wrapper_subclass",
                                "as_subclass",
                                "backward",
                                "_backward",
                                "register_hook",
                                "record_stream",
                                "__bool__",
                                "__int__",
                                "__float__",
                                "__index__",
                                "__complex__",
                                "__long__",
                                "is_nonzero",
                                "equal",
                                "_is_zerotensor",
                                "__reduce_ex__",
                                "__setstate__",
                                "_swap_tensor_impl",
                                "__contains__",
                                "from_numpy",
                                "frombuffer",
                                "from_file",
                                "_from_functional_tensor",
                                "_to_functional_tensor",
                                "__cuda_array_interface__",
                                "_view_func",
                                "_rev_view_func_unsafe",
                                "numpy_T",
                                "new",
                                "_lazy_clone",
                                "_data_address",
                                "_storage_size"};
    return names.contains(name);
}

bool is_known_tensor_attribute(PyObject* name) {
    static const Names names = {"shape",
                                "dtype",
                                "device",
                                "layout",
                                "ndim",
                                "requires_grad",
                                "is_leaf",
                                "itemsize",
                                "nbytes",
                                "is_cuda",
                                "is_cpu",
                                "is_xla",
                                "is_ipu",
                                "is_xpu",
                                "is_hpu",
                                "is_mps",
                                "is_meta",
                                "is_sparse",
                                "is_sparse_csr",
                                "is_mkldnn",
                                "is_quantized",
                                "is_nested",
                                "is_vulkan",
                                "is_maia",
                                "is_mtia",
                                "is_ort",
                                "is_tpu",
                                "T",
                                "mT",
                                "H",
                                "mH",
                                "real",
                                "imag",
                                "names",
                                "is_floating_point",
                                "is_complex",
                                "is_contiguous"};
    return names.contains(text_of(name));
}

bool needs_data(const std::string& name) {
    static const std::unordered_set<std::string> names = {"repr",  "format", "print", "ascii",
                                                          "round", "bin",    "hex",   "oct"};
    return names.contains(name) || name == "float.__new__" || name == "int.__new__" ||
           name == "complex.__new__";
}

bool class_needs_data(PyTypeObject* type) {
    while (is_python_class(type)) type = type->tp_base;
    return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type ||
           type == &PyBool_Type || type == &PyComplex_Type;
}

bool method_needs_data(PyObject* function) {
    static const std::unordered_set<std::string> names = {"__repr__",
                                                          "__format__",
                                                          "__deepcopy__",
                                                          "__reduce_ex__",
                                                          "__contains__",
                                                          "storage",
                                                          "backward",
                                                          "register_hook",
                                                          "unique",
                                                          "unique_consecutive",
                                                          "__array__",
                                                          "__dlpack__",
                                                          "untyped_storage",
                                                          "is_shared",
                                                          "share_memory_",
                                                          "__hash__",
                                                          "register_post_accumulate_grad_hook",
                                                          "to_sparse_coo",
                                                          "__cuda_array_interface__"};
    return names.contains(text_of(reinterpret_cast<PyFunctionObject*>(function)->func_name));
}

}  // namespace ingot::capture
