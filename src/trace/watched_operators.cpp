// See watched_operators.h.
#include "trace/watched_operators.h"

#include <ATen/Operators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/op_registration.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <tuple>
#include <unordered_map>

#include "trace/silent_changes.h"
#include "trace/tensors.h"

namespace ingot::trace {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

/// Storages that are noted as written at the end of a block, however it is left.
class Written {
  public:
    Written() = default;
    Written(const Written&) = delete;
    Written& operator=(const Written&) = delete;
    ~Written() {
        for (const c10::Storage& s : storages_) note_write(s);
    }
    void add(const at::Tensor& t) {
        if (t.defined() && t.has_storage()) storages_.push_back(t.storage());
    }
    void add(const std::optional<at::Tensor>& t) {
        if (t) add(*t);
    }
    void add(const c10::IValue& value) {
        for_each_tensor(value, [this](const at::Tensor& t) { add(t); });
    }
    const auto& storages() const { return storages_; }

  private:
    c10::SmallVector<c10::Storage, 4> storages_;
};

// ---- operators whose schema tells what they write ----

bool is_written(const c10::Argument& a) {
    return a.alias_info() != nullptr && a.alias_info()->isWrite();
}

/// Calls the operator as if nobody watched it.
void go_on(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
}

void note_as_schema_says(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const auto& arguments = op.schema().arguments();
    const auto given = torch::jit::last(*stack, arguments.size());
    Written written;
    for (std::size_t i = 0; i < arguments.size(); ++i)
        if (is_written(arguments[i])) written.add(given[i]);
    go_on(op, keys, stack);
}

/// The same above autograd, for an operator that is made of others. Its one kernel, which any
/// backend has, runs there and nowhere below: its operators are autograd's and torch.func's.
void note_above_autograd(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
    const auto& arguments = op.schema().arguments();
    const auto given = torch::jit::last(*stack, arguments.size());
    Written written;
    for (std::size_t i = 0; i < arguments.size(); ++i)
        if (is_written(arguments[i])) written.add(given[i]);
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
}

// ---- operators whose schema does not tell ----

/// Any tensor that comes in or goes out; collectives go on after they have returned.
void note_collective(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    Written written;
    for (const c10::IValue& v : torch::jit::last(*stack, op.schema().arguments().size()))
        written.add(v);
    go_on(op, keys, stack);
    for (const c10::IValue& v : torch::jit::last(*stack, op.schema().returns().size())) {
        // By name and slot, as a build of PyTorch without collectives has no type for it.
        if (!v.isObject() || !v.toObject()->type()->name() ||
            v.toObject()->type()->name()->qualifiedName() != "__torch__.torch.classes.c10d.Work")
            continue;
        const auto work = v.toObject()->getSlot(0).toCapsule();
        const auto done = [weak =
                               c10::weak_intrusive_ptr<torch::CustomClassHolder>(work)]() -> bool {
            const auto alive = weak.lock();
            if (!alive) return true;
            try {
                return static_cast<c10d::Work*>(alive.get())->isCompleted();
            } catch (const std::exception&) {  // what has failed writes no more
                return true;
            }
        };
        if (!done())
            for (const c10::Storage& s : written.storages()) note_write_under_way(s, done);
    }
}

/// Running statistics, by the names that the operators give them.
bool is_statistics(std::string_view name) {
    return name == "running_mean" || name == "running_var";
}

void add_statistics(const OperatorHandle& op, const Stack& stack, Written& written) {
    const auto& arguments = op.schema().arguments();
    const auto given = torch::jit::last(stack, arguments.size());
    bool training = true;
    for (std::size_t i = 0; i < arguments.size(); ++i)
        if (arguments[i].name() == "training" || arguments[i].name() == "train")
            training = given[i].toBool();
    for (std::size_t i = 0; training && i < arguments.size(); ++i)
        if (is_statistics(arguments[i].name())) written.add(given[i]);
}

void note_statistics(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    Written written;
    add_statistics(op, *stack, written);
    go_on(op, keys, stack);
}

/// PyTorch's kernels of autograd for operators that are not differentiable and do not say that they
/// write: they pass over whatever counts or notes. By operator; filled before the operator's kernel
/// below is there.
std::map<std::string, c10::SafeKernelFunction>& passing_over() {
    static auto* const kernels = new std::map<std::string, c10::SafeKernelFunction>;
    return *kernels;
}

void note_statistics_above_autograd(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    Written written;
    add_statistics(op, *stack, written);
    passing_over().at(op.operator_name().name).callBoxed(op, keys, stack);
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Maybe = const std::optional<at::Tensor>&;

/// The same without boxing: eager's models are full of it.
Three native_batch_norm(DispatchKeySet keys, const at::Tensor& input, Maybe weight, Maybe bias,
                        Maybe mean, Maybe var, bool training, double momentum, double eps) {
    Written written;
    if (training) {
        written.add(mean);
        written.add(var);
    }
    return at::_ops::native_batch_norm::redispatch(keys & c10::after_ADInplaceOrView_keyset, input,
                                                   weight, bias, mean, var, training, momentum,
                                                   eps);
}

// ---- which operators ----

bool is_of(const c10::OperatorName& name, std::string_view space) {
    const auto found = name.getNamespace();
    return found && std::string_view(found->data(), found->size()) == space;
}

/// Operators that write running statistics, some of them only in training; most schemas do not say
/// so. native_batch_norm has a kernel of its own.
constexpr std::array<std::string_view, 7> kWriteStatistics = {
    "aten::cudnn_batch_norm",        "aten::miopen_batch_norm",
    "aten::batch_norm_update_stats", "aten::batch_norm_gather_stats",
    "aten::_batch_norm_with_update", "aten::batch_norm_gather_stats_with_counts",
    "aten::_native_batch_norm_legit"};

/// Whether some kernel of the operator writes by itself, not through operators that count.
bool writes_by_itself(const OperatorHandle& op) {
    for (DispatchKey key :
         {DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::XPU, DispatchKey::MPS, DispatchKey::HPU,
          DispatchKey::MTIA, DispatchKey::PrivateUse1, DispatchKey::QuantizedCPU,
          DispatchKey::QuantizedCUDA, DispatchKey::SparseCPU, DispatchKey::SparseCUDA,
          DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrCUDA, DispatchKey::MkldnnCPU,
          DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorCUDA})
        if (op.hasKernelForDispatchKey(key)) return true;
    return false;
}

class Operators {
  public:
    void add(const OperatorHandle& op) {
        std::lock_guard lock(mutex_);
        fresh_.push_back(op.operator_name());
        any_fresh_.store(true, std::memory_order_release);
    }
    void remove(const OperatorHandle& op) {
        std::lock_guard lock(mutex_);
        std::erase(fresh_, op.operator_name());
    }
    /// Not from the two above, which the dispatcher calls under a lock of its own.
    void watch_fresh() {
        if (!any_fresh_.load(std::memory_order_acquire)) return;
        std::lock_guard one(watching_);
        std::vector<c10::OperatorName> names;
        {
            std::lock_guard lock(mutex_);
            names = std::move(fresh_);
            fresh_.clear();
            any_fresh_.store(false, std::memory_order_release);
        }
        bool any = false;
        for (const c10::OperatorName& name : names)
            if (const auto op = c10::Dispatcher::singleton().findSchema(name))
                any = watch(*op) || any;
        // It may have been called before it was watched.
        if (any) note_possible_writes();
    }
    std::vector<std::string> names() {
        std::lock_guard one(watching_);
        std::vector<std::string> list;
        for (const auto& [name, handles] : watched_) list.push_back(name);
        return list;
    }

  private:
    template <c10::KernelFunction::BoxedKernelFunction_withDispatchKeys* function>
    void put(const OperatorHandle& op, DispatchKey key) {
        if (op.hasKernelForDispatchKey(key)) return;
        watched_[c10::toString(op.operator_name())].push_back(
            c10::Dispatcher::singleton().registerImpl(
                op.operator_name(), key, c10::KernelFunction::makeFromBoxedFunction<function>(),
                std::nullopt, nullptr, "ingot: notes writes that are not counted"));
    }

    bool watch(const OperatorHandle& op) {
        static constexpr auto kKey = DispatchKey::ADInplaceOrView;
        const c10::OperatorName& name = op.operator_name();
        if (op.hasKernelForDispatchKey(kKey)) return false;
        if (is_of(name, "c10d") || name.name == "_c10d_functional::wait_tensor") {
            put<&note_collective>(op, kKey);
            return true;
        }
        if (name.name == "aten::native_batch_norm" && name.overload_name.empty()) {
            watched_[name.name].push_back(c10::Dispatcher::singleton().registerImpl(
                name, kKey,
                c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(native_batch_norm)),
                std::nullopt, nullptr, "ingot: notes writes that are not counted"));
            return true;
        }
        const bool own = is_of(name, "aten") || is_of(name, "prims");
        const bool made_of_others =
            op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
        // Writes through an unsafe view, which has a counter of its own.
        const bool aside = name.name == "aten::kron" && name.overload_name == "out";
        const bool explicitly = op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
        if (own && name.overload_name.empty() &&
            std::ranges::find(kWriteStatistics, name.name) != kWriteStatistics.end()) {
            put<&note_statistics>(op, kKey);
            if (std::ranges::any_of(op.schema().arguments(), is_written)) return true;
            passing_over().emplace(name.name,
                                   op.getComputedKernelForDispatchKey(DispatchKey::AutogradCPU));
            put<&note_statistics_above_autograd>(op, DispatchKey::AutogradCPU);
            put<&note_statistics_above_autograd>(op, DispatchKey::AutogradCUDA);
            return true;
        }
        if (own && !aside && (made_of_others || (explicitly && !writes_by_itself(op))))
            return false;
        if (!std::ranges::any_of(op.schema().arguments(), is_written)) return false;
        put<&note_as_schema_says>(op, kKey);
        if (made_of_others && !writes_by_itself(op))
            for (DispatchKey key : {DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA,
                                    DispatchKey::AutogradXPU, DispatchKey::AutogradMPS})
                put<&note_above_autograd>(op, key);
        return true;
    }

    std::mutex mutex_;  // of what follows
    std::vector<c10::OperatorName> fresh_;
    std::atomic<bool> any_fresh_{false};
    std::mutex watching_;  // of what follows
    std::unordered_map<std::string, std::vector<c10::RegistrationHandleRAII>> watched_;
};

class Listener final : public c10::OpRegistrationListener {
  public:
    explicit Listener(Operators& operators) : operators_(operators) {}
    void onOperatorRegistered(const OperatorHandle& op) override { operators_.add(op); }
    void onOperatorDeregistered(const OperatorHandle& op) override { operators_.remove(op); }

  private:
    Operators& operators_;
};

// ---- steps of optimizers ----

/// `torch.optim` names its steps for the profiler, so no hook is needed that programs would see.
bool is_step(const at::RecordFunction& f) {
    return std::string_view(f.name()).starts_with("Optimizer.step#");
}

std::unique_ptr<at::ObserverContext> step_begins(const at::RecordFunction& f) {
    if (is_step(f)) note_possible_writes();
    return nullptr;
}
void step_ends(const at::RecordFunction& f, at::ObserverContext*) {
    if (is_step(f)) note_possible_writes();
}

/// Never freed: operators are called, and libraries unloaded, until the process ends.
Operators& operators() {
    static auto* const all = [] {
        auto* const made = new Operators;
        static auto* const listening =
            new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(
                std::make_unique<Listener>(*made)));
        static_cast<void>(listening);
        at::addGlobalCallback(at::RecordFunctionCallback(step_begins, step_ends)
                                  .scopes({at::RecordScope::USER_SCOPE}));
        return made;
    }();
    return *all;
}

}  // namespace

void watch_operators() { operators().watch_fresh(); }

std::vector<std::string> watched_operators() { return operators().names(); }

}  // namespace ingot::trace
