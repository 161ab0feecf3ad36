// Promises: tensors with metadata and autograd keys but no data.
//
// A promise's contents are described by its cell (one per storage: the current value of the tensor
// that first owned the storage) and a chain of views from there. To PyTorch a promise is an
// ordinary dense CPU or CUDA tensor whose storage may not be touched: autograd, detach, set_data
// and version counters work on it as on any other.
#pragma once
#include <c10/core/TensorImpl.h>

#include <memory>

#include "ir/graph.h"
#include "trace/dtypes.h"

namespace ingot::trace {

class RecorderState;

/// One storage while recording. `value` is the base tensor's current contents; every write makes a
/// new value and counts the generation up.
struct Cell {
    const RecorderState* owner = nullptr;
    ValueId value = kNone;
    std::uint64_t generation = 0;
    std::int32_t input = -1;     // the graph input it stands for
    bool shares_memory = false;  // another input overlaps it: writes cannot be followed
    bool noticed = false;        // it was written in a way that version counters notice
    c10::ScalarType dtype = c10::kFloat;
    SymInts sizes, strides;  // of the base tensor
    c10::SymInt offset = 0;  // storage offset of the base tensor
};

/// A view: `prim` (a movement prim with `attrs`) of its parent. The root has parent nullptr and
/// stands for the base itself; it is not stored (a null pointer).
struct View {
    std::shared_ptr<const View> parent;
    Prim prim;
    Attrs attrs;
    Type type;  // of the result
    // What reading gave, while the cell has that generation.
    mutable ValueId cached = kNone;
    mutable std::uint64_t cached_generation = 0;
};
using ViewPath = std::shared_ptr<const View>;

class Promise final : public c10::TensorImpl {
  public:
    Promise(std::shared_ptr<Cell> cell, ViewPath view, c10::ScalarType dtype, c10::Device device,
            const SymInts& sizes, const SymInts& strides, const c10::SymInt& offset);

    const std::shared_ptr<Cell>& cell() const { return cell_; }
    const ViewPath& view() const { return view_; }
    /// Whether its version counter is another than its memory's: `data` of a tensor, and views of
    /// that. What is written to it is not noticed by others.
    bool is_apart() const { return apart_; }
    void set_apart() { apart_ = true; }
    /// To PyTorch's rules for derivatives it is zeros (at::_efficientzerotensor).
    void set_zero() { key_set_ = key_set_.add(c10::DispatchKey::ZeroTensor); }
    /// Makes this promise look at other contents (transpose_, resize_, set_data).
    void become(std::shared_ptr<Cell> cell, ViewPath view, const SymInts& sizes,
                const SymInts& strides, const c10::SymInt& offset);

    c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
        const c10::VariableVersion& version_counter,
        bool allow_tensor_metadata_change) const override;
    c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
        c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const override;
    void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

    // Code that insists on numbers gets them; symbolic sizes are then specialised.
    c10::IntArrayRef sizes_custom() const override;
    c10::IntArrayRef strides_custom() const override;
    std::int64_t size_custom(std::int64_t d) const override;
    std::int64_t numel_custom() const override;
    std::int64_t storage_offset_custom() const override;

  private:
    void set_metadata(const SymInts& sizes, const SymInts& strides, const c10::SymInt& offset);
    template <class Version>
    c10::intrusive_ptr<TensorImpl> copy_detached(Version&& version, bool allow) const;

    std::shared_ptr<Cell> cell_;
    ViewPath view_;
    bool apart_ = false;
    mutable Ints numbers_, stride_numbers_;  // what sizes_custom and strides_custom gave
};

/// The promise behind `impl`, or nullptr for a real tensor (also for a promise that was filled).
inline Promise* as_promise(c10::TensorImpl* impl) {
    auto* p = dynamic_cast<Promise*>(impl);
    return p != nullptr && p->cell() != nullptr ? p : nullptr;
}

}  // namespace ingot::trace
