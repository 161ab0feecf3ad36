// See fused_steps.h. The formulas are those of ATen's kernels, the factors that the count of steps
// decides in double precision as there.
#include "trace/fused_steps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "trace/sym_node.h"

namespace ingot::trace {
namespace {

using Tensors = std::vector<at::Tensor>;

class Arguments {
  public:
    Arguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack)
        : schema_(schema), stack_(stack) {}

    const c10::IValue& operator[](const char* name) const {
        const auto index = static_cast<std::size_t>(*schema_.argumentIndexWithName(name));
        return stack_[stack_.size() - schema_.arguments().size() + index];
    }
    bool given(const char* name) const {
        const c10::IValue& v = (*this)[name];
        return !v.isNone() && v.toTensor().defined();
    }
    Tensors list(const char* name) const { return (*this)[name].toTensorVector(); }
    double number(const char* name) const { return (*this)[name].toDouble(); }
    bool flag(const char* name) const { return (*this)[name].toBool(); }

  private:
    const c10::FunctionSchema& schema_;
    const torch::jit::Stack& stack_;
};

/// A learning rate: a number, one that only the call knows, or a tensor.
class Rate {
  public:
    explicit Rate(const c10::IValue& v) {
        if (v.isTensor()) {
            tensor_ = v.toTensor();
        } else if (v.isSymFloat()) {
            tensor_ = contents(v.toSymFloat());
            if (!tensor_.defined()) number_ = v.toSymFloat().guard_float(__FILE__, __LINE__);
        } else {
            number_ = v.toDouble();
        }
        if (tensor_.defined()) tensor_ = tensor_.to(at::kDouble);
    }
    at::Tensor times(const at::Tensor& x) const {
        return tensor_.defined() ? x.mul(tensor_) : x.mul(number_);
    }
    at::Tensor over(const at::Tensor& x) const {
        return tensor_.defined() ? at::div(tensor_, x) : at::reciprocal(x).mul(number_);
    }

  private:
    at::Tensor tensor_;
    double number_ = 0;
};

/// The kernels walk memory: where the tensors of a parameter lie otherwise than itself, what they
/// do is theirs.
bool is_plain(const Tensors& list, const Tensors& parameters) {
    for (std::size_t i = 0; i < list.size(); ++i) {
        const at::Tensor &t = list[i], &p = parameters.at(i);
        const bool wide = t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble;
        if (!wide || t.device() != parameters[0].device() || t.layout() != at::kStrided ||
            (t.dim() != 0 && t.strides() != p.strides()))
            return false;
    }
    return true;
}

at::Tensor decayed(const at::Tensor& gradient, const at::Tensor& parameter, const Arguments& a) {
    const at::Tensor g = a.flag("maximize") ? gradient.neg() : gradient;
    const double decay = a.number("weight_decay");
    return decay == 0 ? g : g.add(parameter, decay);
}

/// 1 - beta^count; GPUs have no power in double precision.
at::Tensor correction(double beta, const at::Tensor& count) {
    return count.mul(std::log(beta)).exp().neg().add(1);
}

void adam(const Arguments& a, bool decouples) {
    const Tensors parameters = a.list("self"), gradients = a.list("grads"),
                  means = a.list("exp_avgs"), squares = a.list("exp_avg_sqs"),
                  most = a.list("max_exp_avg_sqs"), counts = a.list("state_steps");
    const Rate rate(a["lr"]);
    const double beta1 = a.number("beta1"), beta2 = a.number("beta2"),
                 decay = a.number("weight_decay");
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor &p = parameters[i], &mean = means[i], &square = squares[i];
        at::Tensor g = gradients[i];
        if (!decouples) {
            g = decayed(g, p, a);
        } else {
            if (a.flag("maximize")) g = g.neg();
            if (decay != 0) p.sub_(rate.times(p.mul(decay)));
        }
        mean.mul_(beta1).add_(g, 1 - beta1);
        square.mul_(beta2).add_(g.mul(g), 1 - beta2);
        at::Tensor largest = square;
        if (a.flag("amsgrad")) largest = most[i].copy_(at::maximum(most[i], square));
        const at::Tensor count = counts[i].to(at::kDouble);
        const at::Tensor step = rate.over(correction(beta1, count));
        const at::Tensor root = correction(beta2, count).sqrt();
        p.sub_(mean.mul(step).div(largest.sqrt().div(root).add(a.number("eps"))));
    }
}

void gradient_descent(const Arguments& a) {
    const Tensors parameters = a.list("self"), gradients = a.list("grads"),
                  buffers = a.list("momentum_buffer_list");
    const Rate rate(a["lr"]);
    const double momentum = a.number("momentum");
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        at::Tensor g = decayed(gradients[i], parameters[i], a);
        if (momentum != 0) {
            const at::Tensor& buffer = buffers[i];
            if (a.flag("is_first_step"))
                buffer.copy_(g);
            else
                buffer.mul_(momentum).add_(g, 1 - a.number("dampening"));
            g = a.flag("nesterov") ? g.add(buffer, momentum) : buffer;
        }
        parameters[i].sub_(rate.times(g));
    }
}

bool can_take_apart(const c10::FunctionSchema& schema, const Arguments& a) {
    if (a.given("grad_scale") || a.given("found_inf")) return false;
    const Tensors parameters = a.list("self");
    return !parameters.empty() &&
           std::ranges::all_of(schema.arguments(), [&](const c10::Argument& formal) {
               const c10::IValue& v = a[formal.name().c_str()];
               return !v.isTensorList() || is_plain(v.toTensorVector(), parameters);
           });
}

}  // namespace

bool run_fused_step(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    const std::string& name = op.schema().name();
    const bool adamw = name == "aten::_fused_adamw_", sgd = name == "aten::_fused_sgd_";
    if (!adamw && !sgd && name != "aten::_fused_adam_") return false;
    const Arguments a(op.schema(), stack);
    if (!can_take_apart(op.schema(), a)) {
        const c10::IValue& rate = a["lr"];
        if (rate.isTensor() && rate.toTensor().unsafeGetTensorImpl()->is_wrapped_number())
            throw NotSupported("a fused step with a rate that only the call knows");
        return false;
    }
    if (sgd)
        gradient_descent(a);
    else
        adam(a, adamw);
    torch::jit::drop(stack, op.schema().arguments().size());
    return true;
}

}  // namespace ingot::trace
