// Notes where a program takes `data` of a tensor: what is written to it changes the tensor without
// its version counter; see capture.h.
#include <torch/csrc/autograd/python_variable.h>

#include <utility>

#include "capture/capture.h"
#include "trace/silent_changes.h"

namespace ingot::capture {
namespace {

getter original = nullptr;

PyObject* noted(PyObject* tensor, void* closure) {
    PyObject* data = original(tensor, closure);
    if (data != nullptr && THPVariable_Check(tensor))
        trace::note_silent_change(*THPVariable_Unpack(tensor).unsafeGetTensorImpl());
    return data;
}

}  // namespace

bool watch_data() {
    PyTypeObject* base = reinterpret_cast<PyTypeObject*>(THPVariableClass)->tp_base;
    PyObject* data = base == nullptr ? nullptr : PyDict_GetItemString(base->tp_dict, "data");
    if (data == nullptr || Py_TYPE(data) != &PyGetSetDescr_Type) {
        PyErr_SetString(PyExc_ImportError, "torch.Tensor.data is not where it was");
        return false;
    }
    // PyTorch's own table of attributes, which it never frees.
    PyGetSetDef* row = reinterpret_cast<PyGetSetDescrObject*>(data)->d_getset;
    if (row->get != noted) original = std::exchange(row->get, noted);
    return true;
}

}  // namespace ingot::capture
