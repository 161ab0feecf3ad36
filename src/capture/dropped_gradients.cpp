// See dropped_gradients.h.
#include "capture/dropped_gradients.h"

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "capture/objects.h"

namespace ingot::capture {
namespace {

/// Whether the memory is this tensor's alone and `users` in C++ are all that hold it, beside its
/// Python object, which then counts as one more and itself has `holders`: PyTorch is one of them
/// while there are users in C++. Who holds an object can be told since PyTorch 2.13.
template <class Tensor>
bool is_held_by(const Tensor& t, std::size_t users, Py_ssize_t holders) {
    if (!t.is_cpu() || t.layout() != c10::kStrided || !t.has_storage() ||
        t.storage().use_count() != 1)
        return false;
    PyObject* object = python_object(t);
    if (object == nullptr) return t.use_count() == users;
    if constexpr (requires { t.unsafeGetTensorImpl()->pyobj_slot()->has_unique_reference(); })
        return t.use_count() == users + 1 && Py_REFCNT(object) == holders;
    return false;
}

void free_memory(const at::Tensor& t) {
    c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
}

}  // namespace

std::vector<ClearedGradient> find_dropped(std::span<const ClearedGradient> cleared,
                                          const Segment& segment) {
    if (cleared.empty()) return {};
    std::vector<bool> needed(segment.guards.nodes.size(), false);
    const auto need = [&](std::int32_t node) {
        if (node >= 0) needed[static_cast<std::size_t>(node)] = true;
    };
    for (const Segment::Input& in : segment.inputs)
        if (!in.pinned && !in.number) need(in.index);
    for (const Instruction& i : segment.recipes.instructions)
        if (i.make == Make::Node) need(i.index);
    for (const Node& n : segment.guards.nodes) need(n.parent);
    std::vector<ClearedGradient> found;
    for (const ClearedGradient& c : cleared)
        if (c.gradient < 0 || !needed[static_cast<std::size_t>(c.gradient)]) found.push_back(c);
    return found;
}

void drop_recorded(PyObject* gradient, Py_ssize_t holders) {
    const at::Tensor& t = THPVariable_Unpack(gradient);
    if (is_held_by(t, 0, holders)) free_memory(t);
}

void fill_dropped(const at::Tensor& gradient) {
    if (!gradient.is_cpu() || !gradient.has_storage()) return;
    c10::StorageImpl* storage = gradient.storage().unsafeGetStorageImpl();
    if (storage->nbytes() == 0 || storage->data_ptr().get() != nullptr) return;
    c10::DataPtr data = c10::GetCPUAllocator()->allocate(storage->nbytes());
    std::memset(data.get(), 0, storage->nbytes());
    storage->set_data_ptr_noswap(std::move(data));
}

DroppedGradients::DroppedGradients(std::span<const ClearedGradient> dropped, const Values& values,
                                   const GuardSet& guards) {
    for (const ClearedGradient& d : dropped) {
        PyObject* leaf = d.tensor >= 0
                             ? guards.tensors[static_cast<std::size_t>(d.tensor)].tensor.get()
                             : values[static_cast<std::size_t>(d.leaf)];
        const at::Tensor& t = THPVariable_Unpack(leaf);
        at::Tensor& gradient = t.mutable_grad();
        // The leaf's reference, and that of the guards' values.
        if (!gradient.defined() || !is_held_by(gradient, 1, d.gradient >= 0 ? 2 : 1)) continue;
        free_memory(gradient);
        dropped_.push_back({t, std::move(gradient)});
        gradient = at::Tensor();
    }
}

DroppedGradients::~DroppedGradients() {
    for (Dropped& d : dropped_) {
        at::Tensor& gradient = d.leaf.mutable_grad();
        if (gradient.defined()) continue;
        try {
            fill_dropped(d.gradient);
        } catch (const std::exception&) {
            continue;  // no memory: None, as eager leaves it
        }
        gradient = std::move(d.gradient);
    }
}

}  // namespace ingot::capture
