// Views and in-place writes made functional: reading and writing cells through views.
//
// Reading applies the view's movement prims to the base's current value; writing applies their
// inverses from the innermost step outwards and stores the new base. Reads are cached per
// generation, so that a view that is used often costs one node.
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <numeric>

#include "ir/assumed.h"
#include "trace/lower/emitter.h"
#include "trace/mode.h"
#include "trace/recorder_state.h"

namespace ingot::trace {

const Type& RecorderState::type_of(const Cell& cell, const ViewPath& path) const {
    return path ? path->type : graph.type(cell.value);
}

ViewPath RecorderState::extend(const Cell& cell, const ViewPath& path, Prim prim, Attrs attrs) {
    const Type operand = type_of(cell, path);
    const std::span<const Type> operands(&operand, 1);
    if (symbols->any()) symbols->require_equal(assumed_equalities(prim, operands, attrs));
    std::vector<Type> types = infer_types(prim, operands, attrs);
    auto view = std::make_shared<View>();
    view->parent = path;
    view->prim = prim;
    view->attrs = std::move(attrs);
    view->type = std::move(types[0]);
    return view;
}

ValueId RecorderState::read(const Cell& cell, const ViewPath& path) {
    if (!path) return cell.value;
    if (path->cached != kNone && path->cached_generation == cell.generation) return path->cached;
    ValueId parent = read(cell, path->parent);
    path->cached = graph.emit(path->prim, {parent}, path->attrs, origin);
    path->cached_generation = cell.generation;
    return path->cached;
}

ValueId RecorderState::read(const at::Tensor& tensor) { return read(promise(tensor)); }

ValueId RecorderState::read_memory(const Promise& promise) {
    ValueId value = read(promise);
    if (promise.is_neg()) value = graph.emit(Prim::Neg, {value}, {}, origin);
    if (promise.is_conj()) value = graph.emit(Prim::Conj, {value}, {}, origin);
    return value;
}

namespace {

Ints inverse(const Ints& dims) {
    Ints out(dims.size());
    for (std::size_t i = 0; i < dims.size(); ++i)
        out[static_cast<std::size_t>(dims[i])] = static_cast<std::int64_t>(i);
    return out;
}

/// `whole` with what `view` shows of it replaced by `part`.
ValueId put_back(Graph& graph, const View& view, ValueId whole, ValueId part,
                 const std::string& origin) {
    const Type& type = graph.type(whole);
    const Attrs& a = view.attrs;
    switch (view.prim) {
        case Prim::Permute:
            return graph.emit(Prim::Permute, {part}, {{"dims", inverse(a.get<Ints>("dims"))}},
                              origin);
        case Prim::Reshape:
            return graph.emit(Prim::Reshape, {part}, {{"sizes", type.sizes}}, origin);
        case Prim::Slice:
            return graph.emit(Prim::Update, {whole, part},
                              {{"starts", a.get<Sizes>("starts")}, {"steps", a.get<Ints>("steps")}},
                              origin);
        case Prim::Diagonal:
            return graph.emit(Prim::UpdateDiagonal, {whole, part}, a, origin);
        case Prim::AsStrided:
            return graph.emit(
                Prim::UpdateStrided, {whole, part},
                {{"strides", a.get<Sizes>("strides")}, {"offset", a.get<Expr>("offset")}}, origin);
        case Prim::Conj:
        case Prim::Neg:
            return graph.emit(view.prim, {part}, {}, origin);
        case Prim::ViewAsReal:
            return graph.emit(Prim::ViewAsComplex, {part}, {}, origin);
        case Prim::ViewAsComplex:
            return graph.emit(Prim::ViewAsReal, {part}, {}, origin);
        case Prim::ViewBits:
        case Prim::Bitcast:
            return graph.emit(view.prim, {part}, {{"dtype", type.dtype}}, origin);
        default:
            throw NotSupported("a write through a view made by " + std::string(name(view.prim)));
    }
}

bool covers_everything(const View& view, const Type& parent) {
    return view.prim == Prim::Slice && view.type == parent;
}

}  // namespace

void RecorderState::write(Cell& cell, const View& view, ValueId value) {
    ValueId whole = value;
    if (!covers_everything(view, type_of(cell, view.parent))) {
        ValueId parent = read(cell, view.parent);
        whole = put_back(graph, view, parent, value, origin);
    }
    if (view.parent) {
        write(cell, *view.parent, whole);
    } else {
        cell.value = whole;
        ++cell.generation;
    }
    view.cached = value;
    view.cached_generation = cell.generation;
}

void RecorderState::write(const Promise& promise, ValueId value) {
    Cell& cell = *promise.cell();
    if (cell.shares_memory)
        throw NotSupported("a write to an input that shares memory with another");
    check(graph.type(value) == type_of(cell, promise.view()),
          "a write changes the type of a storage");
    cell.noticed = cell.noticed || !promise.is_apart();
    if (promise.view()) {
        write(cell, *promise.view(), value);
    } else {
        cell.value = value;
        ++cell.generation;
    }
}

namespace {
bool same_sizes(const Sizes& a, const SymInts& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
        if (!(a[i] == unwrap(b[i]))) return false;
    return true;
}

}  // namespace

at::Tensor RecorderState::fresh(ValueId value, const SymInts& strides, c10::Device device) {
    const Type& type = graph.type(value);
    auto cell = std::make_shared<Cell>();
    cell->owner = this;
    cell->value = value;
    cell->dtype = to_scalar_type(type.dtype);
    cell->sizes = symbols->wrap(type.sizes);
    cell->strides = strides;
    check(cell->sizes.size() == strides.size(), "a lowering gave strides of another rank");
    return at::Tensor(
        c10::make_intrusive<Promise>(cell, nullptr, cell->dtype, device, cell->sizes, strides, 0));
}

at::Tensor RecorderState::view_of(const Promise& base, ViewPath path, c10::ScalarType dtype,
                                  const SymInts& sizes, const SymInts& strides,
                                  const c10::SymInt& offset) {
    const Type& type = type_of(*base.cell(), path);
    check(type.dtype == to_dtype(dtype) && same_sizes(type.sizes, sizes),
          "a view's metadata differ from its contents");
    auto view = c10::make_intrusive<Promise>(base.cell(), std::move(path), dtype, base.device(),
                                             sizes, strides, offset);
    if (base.is_apart()) view->set_apart();
    set_bits(*view, base.is_conj(), base.is_neg());
    return at::Tensor(std::move(view));
}

namespace {

/// Whether the tensors can touch a common byte of one storage.
bool overlap(const at::Tensor& a, const at::Tensor& b) {
    if (!a.defined() || !a.has_storage() || !b.has_storage() ||
        a.storage().unsafeGetStorageImpl() != b.storage().unsafeGetStorageImpl())
        return false;
    auto extent = [](const at::Tensor& t) {
        std::int64_t last = 0;
        for (std::int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
        std::int64_t begin = t.storage_offset() * static_cast<std::int64_t>(t.element_size());
        std::int64_t bytes =
            t.numel() == 0 ? 0 : (last + 1) * static_cast<std::int64_t>(t.element_size());
        return std::pair(begin, begin + bytes);
    };
    auto [a0, a1] = extent(a);
    auto [b0, b1] = extent(b);
    return a0 < b1 && b0 < a1;
}

void require_plain(const at::Tensor& real) {
    if (real.layout() != c10::kStrided) throw NotSupported("a tensor that is not strided");
    if (real.is_quantized()) throw NotSupported("a quantised tensor");
    if (real.is_conj() || real.is_neg()) throw NotSupported("an input with a lazy conj or neg bit");
    if (real.unsafeGetTensorImpl()->is_python_dispatch())
        throw NotSupported("a tensor subclass with __torch_dispatch__");
    if (!real.has_storage()) throw NotSupported("a tensor without storage");
    if (real.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
        throw NotSupported("a tensor with symbolic sizes");
}

/// The sizes of an input: symbols where the caller wants them, else the example's numbers.
Sizes declared_sizes(SymbolicSizes& symbols, const at::Tensor& real,
                     std::span<const SymbolicSize> dims) {
    Sizes sizes = to_sizes(real.sizes());
    if (dims.empty()) return sizes;
    if (dims.size() != sizes.size())
        throw UserError("an input's symbolic sizes are of another rank");
    for (std::size_t d = 0; d < sizes.size(); ++d)
        if (!dims[d].name.empty())
            sizes[d] = symbols.symbol(dims[d].name, sizes[d].constant(), dims[d].range);
    return sizes;
}

/// Strides as products of sizes where the example's agree, from the innermost dim out; else
/// numbers.
Sizes declared_strides(SymbolicSizes& symbols, const at::Tensor& real, const Sizes& sizes) {
    Sizes strides = to_sizes(real.strides());
    if (std::all_of(sizes.begin(), sizes.end(), [](Expr e) { return e.is_constant(); }))
        return strides;
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const std::int64_t x = real.stride(static_cast<std::int64_t>(a)),
                           y = real.stride(static_cast<std::int64_t>(b));
        return x != y ? x < y : a > b;
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
        const std::size_t d = order[i];
        // The nearest dim inside that explains this one.
        for (std::size_t k = i; k-- > 0;) {
            const std::size_t inner = order[k];
            const Expr whole = strides[inner] * sizes[inner];
            if (symbols.hint(whole) != strides[d].constant()) continue;
            strides[d] = whole;
            break;
        }
    }
    return strides;
}

/// Where PyTorch has no CUDA, its frames' changes of the current device must go somewhere.
void gpu_without_cuda() {
    auto& guard = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::kCUDA)];
    static const c10::impl::NoOpDeviceGuardImpl<c10::kCUDA> nothing;
    if (guard.load() == nullptr) guard.store(&nothing);
}

}  // namespace

c10::Device RecorderState::resolve(c10::Device wanted) {
    if (wanted.is_cpu()) return wanted;  // numbers; an output there is refused in the end
    if (!wanted.is_cuda()) throw NotSupported("device " + wanted.str());
    if (!device) {
        if (!wanted.has_index()) throw NotSupported("a GPU without an index and without inputs");
        device = wanted;
    }
    if (!device->is_cuda() || (wanted.has_index() && wanted != *device))
        throw NotSupported("tensors on several devices");
    if (!wanted.has_index()) {  // the current one
        const auto& guard =
            c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::kCUDA)];
        if (guard.load()->deviceCount() > 1 && guard.load()->getDevice() != *device)
            throw NotSupported("a tensor on the current GPU, which is another one");
    }
    return *device;
}

at::Tensor RecorderState::add_input(const at::Tensor& real, bool frozen, std::string name,
                                    bool captured, std::span<const SymbolicSize> dims,
                                    std::optional<c10::Device> as) {
    if (auto it = captured_.find(real.unsafeGetTensorImpl()); it != captured_.end())
        return it->second;
    require_plain(real);
    const c10::Device where = as.value_or(real.device());
    if (!where.is_cpu() && !where.is_cuda()) throw NotSupported("device " + where.str());
    if (!device) device = where;
    if (as) gpu_without_cuda();
    if (where != *device) throw NotSupported("inputs on several devices");
    auto cell = std::make_shared<Cell>();
    cell->owner = this;
    cell->dtype = real.scalar_type();
    const Sizes sizes = declared_sizes(*symbols, real, dims);
    const Sizes strides = declared_strides(*symbols, real, sizes);
    cell->sizes = symbols->wrap(sizes);
    cell->strides = symbols->wrap(strides);
    cell->offset = real.storage_offset();
    cell->input = static_cast<std::int32_t>(inputs.size());
    for (std::size_t i = 0; i < kept_.size(); ++i)
        if (overlap(kept_[i], real)) cell->shares_memory = input_cells_[i]->shares_memory = true;
    // The graph says nothing of devices: all of it is computed on one.
    Type type{to_dtype(cell->dtype), sizes, Device{}};
    cell->value = graph.add_input(std::move(type), std::move(name), strides, frozen);
    auto impl = c10::make_intrusive<Promise>(cell, nullptr, cell->dtype, where, cell->sizes,
                                             cell->strides, cell->offset);
    at::Tensor promise(std::move(impl));
    inputs.push_back({promise, captured ? real : at::Tensor(), captured});
    captured_.emplace(real.unsafeGetTensorImpl(), promise);
    kept_.push_back(real);
    input_cells_.push_back(cell);
    return promise;
}

Promise& RecorderState::promise(const at::Tensor& tensor) {
    check(tensor.defined(), "an undefined tensor has no contents");
    if (Promise* p = as_promise(tensor.unsafeGetTensorImpl())) {
        if (p->cell()->owner != this) throw NotSupported("a promise of another recording");
        return *p;
    }
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        // A number of the program's that a kernel, as those of vmap, takes for a tensor.
        const WithoutMode no_mode(*this);
        const DType type = to_dtype(tensor.scalar_type());
        Emitter e(graph, *symbols, origin);
        const auto& made = number_tensors_.emplace_back(
            fresh(e.full(type, {}, cast_scalar(tensor.item(), type)), {}, tensor.device()));
        return *as_promise(made.unsafeGetTensorImpl());
    }
    if (refuses_gradients && tensor.requires_grad() && at::GradMode::is_enabled()) {
        refused_gradient = true;
        throw NotSupported("a tensor that needs a gradient");
    }
    if (follows_gradients && tensor.requires_grad() && at::GradMode::is_enabled() &&
        !tensor.is_leaf())
        throw NotSupported("a tensor with a history, found by the program itself");
    at::Tensor p =
        add_input(tensor, true, "captured" + std::to_string(inputs.size()), true, {}, {});
    return *as_promise(p.unsafeGetTensorImpl());
}

}  // namespace ingot::trace
