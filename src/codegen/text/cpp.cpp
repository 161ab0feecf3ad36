// The C++ printer: one function a kernel, a loop a Loop, a `const auto` an inst. Nothing is
// optimised: the text says what the nest says, so that it can serve as a second opinion on the
// machine code. Linear in the size of the kernel.
#include "codegen/text/cpp.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <span>

#include "codegen/text/cpp_prelude.h"
#include "codegen/text/expr_printer.h"
#include "ir/error.h"
#include "ir/philox.h"

namespace ingot {

namespace {

std::string storage_type(DType t) {
    switch (t) {
        case DType::Bool:
            return "bool";
        case DType::U8:
            return "uint8_t";
        case DType::U16:
            return "uint16_t";
        case DType::U32:
            return "uint32_t";
        case DType::U64:
            return "uint64_t";
        case DType::I8:
            return "int8_t";
        case DType::I16:
            return "int16_t";
        case DType::I32:
            return "int32_t";
        case DType::I64:
            return "int64_t";
        case DType::F8E4M3:
            return "f8e4m3";
        case DType::F8E5M2:
            return "f8e5m2";
        case DType::F16:
            return "f16";
        case DType::BF16:
            return "bf16";
        case DType::F32:
            return "float";
        case DType::F64:
            return "double";
        case DType::C64:
            return "std::complex<float>";
        case DType::C128:
            return "std::complex<double>";
    }
    return {};
}
std::string value_type(DType t) { return storage_type(compute_type(t)); }

std::string real_literal(double v, bool single) {
    std::string type = single ? "float" : "double";
    if (std::isnan(v)) return "std::numeric_limits<" + type + ">::quiet_NaN()";
    if (std::isinf(v))
        return std::string(v < 0 ? "-" : "") + "std::numeric_limits<" + type + ">::infinity()";
    char text[64];
    std::snprintf(text, sizeof text, single ? "%.9g" : "%.17g", v);
    std::string s = text;
    if (s.find_first_of(".e") == std::string::npos) s += ".0";
    return s + (single ? "f" : "");
}

std::string literal(const Scalar& s, DType dtype) {
    DType t = compute_type(dtype);
    if (t == DType::Bool) return s.to_complex() != 0.0 ? "true" : "false";
    if (is_int(t)) {
        std::int64_t v = s.to_int();
        std::string digits =
            v == INT64_MIN ? "std::numeric_limits<int64_t>::min()" : std::to_string(v);
        return value_type(t) + "(" + digits + ")";
    }
    if (is_complex(t)) {
        bool single = t == DType::C64;
        auto c = s.to_complex();
        return value_type(t) + "(" + real_literal(c.real(), single) + ", " +
               real_literal(c.imag(), single) + ")";
    }
    return real_literal(s.to_double(), t == DType::F32);
}

// Prims that C++ writes as an operator or a function of <cmath>; all others call the prelude's
// p_<name>.
const char* operator_of(Prim p) {
    switch (p) {
        case Prim::Eq:
            return "==";
        case Prim::Ne:
            return "!=";
        case Prim::Lt:
            return "<";
        case Prim::Le:
            return "<=";
        case Prim::Gt:
            return ">";
        case Prim::Ge:
            return ">=";
        case Prim::BitwiseAnd:
            return "&";
        case Prim::BitwiseOr:
            return "|";
        case Prim::BitwiseXor:
            return "^";
        default:
            return nullptr;
    }
}
const char* library_function(Prim p) {
    switch (p) {
        case Prim::Acos:
            return "std::acos";
        case Prim::Acosh:
            return "std::acosh";
        case Prim::Asin:
            return "std::asin";
        case Prim::Asinh:
            return "std::asinh";
        case Prim::Atan:
            return "std::atan";
        case Prim::Atan2:
            return "std::atan2";
        case Prim::Atanh:
            return "std::atanh";
        case Prim::Cbrt:
            return "std::cbrt";
        case Prim::Copysign:
            return "std::copysign";
        case Prim::Cos:
            return "std::cos";
        case Prim::Cosh:
            return "std::cosh";
        case Prim::Erf:
            return "std::erf";
        case Prim::Erfc:
            return "std::erfc";
        case Prim::Exp:
            return "std::exp";
        case Prim::Expm1:
            return "std::expm1";
        case Prim::Hypot:
            return "std::hypot";
        case Prim::Lgamma:
            return "std::lgamma";
        case Prim::Log:
            return "std::log";
        case Prim::Log10:
            return "std::log10";
        case Prim::Log1p:
            return "std::log1p";
        case Prim::Nextafter:
            return "std::nextafter";
        case Prim::Sin:
            return "std::sin";
        case Prim::Sinh:
            return "std::sinh";
        case Prim::Sqrt:
            return "std::sqrt";
        case Prim::Tan:
            return "std::tan";
        case Prim::Tanh:
            return "std::tanh";
        default:
            return nullptr;
    }
}
bool in_prelude(Prim p) {
    return kCppPrelude.find(" p_" + std::string(name(p)) + "(") != std::string_view::npos;
}

class CppPrinter {
  public:
    explicit CppPrinter(const Kernel& kernel) : kernel_(kernel) {
        for (const Expr& s : kernel.sizes)
            syntax_.names[s.node()->symbol] = identifier(s.node()->symbol);
    }

    std::string function(const std::string& symbol) {
        line("// " + kernel_.name);
        std::string parameters;
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
            const KernelBuffer& b = kernel_.buffers[i];
            if (b.scope == BufferScope::Scratch) continue;
            parameters +=
                (b.written ? "" : "const ") + storage_type(b.dtype) + "* " + buffer(i) + ", ";
        }
        for (const Expr& s : kernel_.sizes)
            parameters += "int64_t " + print_expr(s, syntax_) + ", ";
        open("static void " + symbol + "_kernel(" + parameters + "int64_t* error) {");
        line("(void)error;");
        for (const Nest& nest : kernel_.nests) print_nest(nest);
        if (kernel_.contraction) print_contraction(*kernel_.contraction);
        close();
        return out_;
    }

    std::string entry(const std::string& symbol) {
        out_.clear();
        open("extern \"C\" void " + symbol +
             "(void* const* buffers, const int64_t* sizes, int64_t* error) {");
        line("(void)sizes;");
        std::string arguments;
        int argument = 0;
        for (const KernelBuffer& b : kernel_.buffers)
            if (b.scope == BufferScope::Argument)
                arguments +=
                    "(" + storage_type(b.dtype) + "*)buffers[" + std::to_string(argument++) + "], ";
        for (std::size_t i = 0; i < kernel_.sizes.size(); ++i)
            arguments += "sizes[" + std::to_string(i) + "], ";
        line(symbol + "_kernel(" + arguments + "error);");
        close();
        return out_;
    }

  private:
    void line(const std::string& text) { out_ += std::string(indent_ * 4, ' ') + text + "\n"; }
    void open(const std::string& text) {
        line(text);
        ++indent_;
    }
    void close() {
        --indent_;
        line("}");
    }
    static std::string buffer(std::size_t i) { return "b" + std::to_string(i); }
    std::string index(Expr e) const { return print_expr(e, syntax_); }

    void open_loops(std::span<const Loop> loops, bool parallel) {
        if (parallel && !loops.empty()) {
            std::string collapse =
                loops.size() > 1 ? " collapse(" + std::to_string(loops.size()) + ")" : "";
            line("#pragma omp parallel for" + collapse);
        }
        for (const Loop& l : loops) {
            std::string v = index(l.var);
            open("for (int64_t " + v + " = 0; " + v + " < " + index(l.extent) + "; ++" + v + ") {");
        }
    }
    void close_loops(std::span<const Loop> loops) {
        for (std::size_t i = 0; i < loops.size(); ++i) close();
    }

    void scratch_buffers() {
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
            const KernelBuffer& b = kernel_.buffers[i];
            if (b.scope == BufferScope::Scratch)
                line("std::vector<" + storage_type(b.dtype) + "> " + buffer(i) + "(" +
                     index(b.elements) + ");");
        }
    }

    void print_nest(const Nest& nest) {
        round_ = nest.round_intermediates;
        const std::vector<Loop> parallel = parallel_loops(nest);
        open_loops(parallel, true);
        const std::span<const Loop> run = std::span(nest.loops).subspan(parallel.size());
        run_ = run.empty() ? "" : index(run[0].var);
        open_loops(run, false);
        scratch_buffers();
        for (std::size_t p = 0; p < nest.phases.size(); ++p) {
            const Phase& phase = nest.phases[p];
            for (std::size_t r = 0; r < phase.reductions.size(); ++r)
                declare(phase.reductions[r], p, r);
            open_loops(phase.loops, false);
            print_insts(phase.insts, "v" + std::to_string(p) + "_");
            for (std::size_t r = 0; r < phase.reductions.size(); ++r)
                accumulate(phase.reductions[r], reduction(p, r), "v" + std::to_string(p) + "_");
            print_stores(phase.stores, "v" + std::to_string(p) + "_");
            close_loops(phase.loops);
        }
        close_loops(nest.loops);
    }

    void print_contraction(const Contraction& c) {
        round_ = c.round_intermediates;
        std::vector<Loop> outer = c.batch;
        outer.insert(outer.end(), c.m.begin(), c.m.end());
        outer.insert(outer.end(), c.n.begin(), c.n.end());
        open_loops(outer, true);
        scratch_buffers();
        line(value_type(c.accumulate) + " acc = 0;");
        open_loops(c.k, false);
        print_insts(c.a_insts, "a");
        print_insts(c.b_insts, "w");
        std::string type = value_type(c.accumulate);
        line("acc += " + type + "(a" + std::to_string(c.a_insts.size() - 1) + ") * " + type + "(w" +
             std::to_string(c.b_insts.size() - 1) + ");");
        close_loops(c.k);
        print_insts(c.epilogue.insts, "v");
        print_stores(c.epilogue.stores, "v");
        close_loops(outer);
    }

    static std::string reduction(std::size_t phase, std::size_t r) {
        return "r" + std::to_string(phase) + "_" + std::to_string(r);
    }
    void declare(const Reduction& r, std::size_t phase, std::size_t id) {
        std::string type = value_type(r.dtype), init;
        switch (r.op) {
            case ReduceOp::Sum:
            case ReduceOp::Or:
            case ReduceOp::Xor:
                init = type + "(0)";
                break;
            case ReduceOp::Prod:
                init = type + "(1)";
                break;
            case ReduceOp::And:
                init = r.dtype == DType::Bool ? "true" : type + "(-1)";
                break;
            case ReduceOp::Max:
            case ReduceOp::ArgMax:
                init = "lowest<" + type + ">()";
                break;
            case ReduceOp::Min:
            case ReduceOp::ArgMin:
                init = "highest<" + type + ">()";
                break;
        }
        line(type + " " + reduction(phase, id) + " = " + init + ";");
        if (is_arg(r.op))
            line("int64_t " + reduction(phase, id) + "_at = std::numeric_limits<int64_t>::max();");
    }
    static bool is_arg(ReduceOp op) { return op == ReduceOp::ArgMax || op == ReduceOp::ArgMin; }

    void accumulate(const Reduction& r, const std::string& acc, const std::string& prefix) {
        std::string v = prefix + std::to_string(r.value);
        switch (r.op) {
            case ReduceOp::Sum:
                line(acc + " = p_add<" + value_type(r.dtype) + ">(" + acc + ", " + v + ");");
                break;
            case ReduceOp::Prod:
                line(acc + " = p_mul<" + value_type(r.dtype) + ">(" + acc + ", " + v + ");");
                break;
            case ReduceOp::Max:
                line(acc + " = p_maximum<" + value_type(r.dtype) + ">(" + acc + ", " + v + ");");
                break;
            case ReduceOp::Min:
                line(acc + " = p_minimum<" + value_type(r.dtype) + ">(" + acc + ", " + v + ");");
                break;
            case ReduceOp::And:
                line(acc + " = " + acc + " & " + v + ";");
                break;
            case ReduceOp::Or:
                line(acc + " = " + acc + " | " + v + ";");
                break;
            case ReduceOp::Xor:
                line(acc + " = " + acc + " ^ " + v + ";");
                break;
            case ReduceOp::ArgMax:
            case ReduceOp::ArgMin: {
                std::string i = prefix + std::to_string(r.index);
                std::string better = r.op == ReduceOp::ArgMax ? "better_max" : "better_min";
                line("if (" + better + "<" + value_type(r.dtype) + ">(" + v + ", " + i + ", " +
                     acc + ", " + acc + "_at)) { " + acc + " = " + v + "; " + acc + "_at = " + i +
                     "; }");
                break;
            }
        }
    }

    void print_insts(const std::vector<Inst>& insts, const std::string& prefix) {
        for (std::size_t i = 0; i < insts.size(); ++i) print_inst(insts, i, prefix);
    }

    void print_inst(const std::vector<Inst>& insts, std::size_t id, const std::string& prefix) {
        const Inst& inst = insts[id];
        std::string name = prefix + std::to_string(id);
        if (inst.kind == InstKind::Bind) {
            bind(inst, prefix);
            return;
        }
        std::string type = value_type(inst.dtype);
        std::string value = expression(inst, insts, prefix);
        bool rounds = inst.kind == InstKind::Prim && round_ && is_reduced_float(inst.dtype);
        if (rounds) value = "rounded<" + storage_type(inst.dtype) + ">(" + value + ")";
        line("const " + type + " " + name + " = " + value + ";");
    }

    void bind(const Inst& inst, const std::string& prefix) {
        std::string v = index(inst.offset), from = prefix + std::to_string(inst.operands[0]);
        line("int64_t " + v + " = int64_t(" + from + ");");
        if (inst.imm == kBindAny) return;
        std::string extent = index(inst.extent);
        if (inst.imm == kBindFromEnds) line("if (" + v + " < 0) " + v + " += " + extent + ";");
        line("if (" + v + " < 0 || " + v + " >= " + extent + ") { *error = 1; " + v + " = 0; }");
    }

    std::string expression(const Inst& inst, const std::vector<Inst>& insts,
                           const std::string& prefix) {
        auto operand = [&](std::size_t i) { return prefix + std::to_string(inst.operands[i]); };
        switch (inst.kind) {
            case InstKind::Load: {
                DType stored = kernel_.buffers[static_cast<std::size_t>(inst.buffer)].dtype;
                std::string access =
                    buffer(static_cast<std::size_t>(inst.buffer)) + "[" + index(inst.offset) + "]";
                if (is_reduced_float(stored)) access = "load(" + access + ")";
                if (inst.mask == kNone) return access;
                return prefix + std::to_string(inst.mask) + " ? " + access + " : " +
                       literal(inst.constant, inst.dtype);
            }
            case InstKind::Index:
                return value_type(inst.dtype) + "(" + index(inst.offset) + ")";
            case InstKind::Constant:
                return literal(inst.constant, inst.dtype);
            case InstKind::Reduced:
                return reduction(static_cast<std::size_t>(inst.phase),
                                 static_cast<std::size_t>(inst.reduction)) +
                       (inst.component == 1 ? "_at" : "");
            case InstKind::Accumulator:
                return "acc";
            case InstKind::Prim:
                break;
            case InstKind::Bind:
                return {};
        }
        DType from = insts[inst.operands[0]].dtype;
        switch (inst.prim) {
            case Prim::Convert:
                return conversion(operand(0), from, inst.dtype);
            case Prim::Bitcast:
                return "bitcast<" + value_type(inst.dtype) + ">(" + operand(0) + ")";
            case Prim::Select:
                return operand(0) + " ? " + operand(1) + " : " + operand(2);
            case Prim::LogicalNot:
                return "!bool(" + operand(0) + " != " + literal(0, from) + ")";
            case Prim::LogicalAnd:
                return truth(operand(0), from) + " && " + truth(operand(1), from);
            case Prim::LogicalOr:
                return truth(operand(0), from) + " || " + truth(operand(1), from);
            case Prim::LogicalXor:
                return truth(operand(0), from) + " != " + truth(operand(1), from);
            case Prim::Philox: {
                const PhiloxLayout layout = PhiloxLayout::unpacked(inst.imm);
                return "p_philox(" + operand(0) + ", " + operand(1) + ", " + operand(2) + ", " +
                       std::to_string(layout.threads) + ", " + std::to_string(layout.width) + ")";
            }
            case Prim::Round2:
                return "p_round_decimals(" + operand(0) + ", " + std::to_string(inst.imm) + ")";
            default:
                break;
        }
        if (const char* op = operator_of(inst.prim)) {
            std::string plain = operand(0) + " " + op + " " + operand(1);
            return is_int(inst.dtype) ? value_type(inst.dtype) + "(" + plain + ")" : plain;
        }
        std::string callee;
        if (const char* f = library_function(inst.prim))
            callee = f;
        else if (in_prelude(inst.prim))
            callee = "p_" + std::string(ingot::name(inst.prim));
        else
            throw NotSupported("no C++ text for the prim '" + std::string(ingot::name(inst.prim)) +
                               "'");
        std::string arguments;
        for (std::size_t i = 0; i < inst.operands.size(); ++i)
            arguments += (i ? ", " : "") + operand(i);
        return callee + "(" + arguments + ")";
    }

    static std::string truth(const std::string& v, DType t) {
        return "(" + v + " != " + literal(0, t) + ")";
    }

    std::string conversion(const std::string& v, DType from, DType to) const {
        if (is_complex(from) && !is_complex(to))
            return conversion("convert_real(" + v + ")", real_type(from), to);
        if (is_complex(to)) return value_type(to) + "(" + v + ")";
        std::string plain = "convert<" + value_type(to) + ">(" + v + ")";
        // A conversion to a reduced float rounds whatever the rounding of intermediates says: it is
        // asked for.
        return is_reduced_float(to) ? "rounded<" + storage_type(to) + ">(" + plain + ")" : plain;
    }

    void print_stores(const std::vector<Store>& stores, const std::string& prefix) {
        for (const Store& s : stores) {
            std::size_t b = static_cast<std::size_t>(s.buffer);
            DType stored = kernel_.buffers[b].dtype;
            std::string value = prefix + std::to_string(s.value);
            std::string target = buffer(b) + "[" + index(s.offset) + "]";
            std::string guard =
                s.mask == kNone ? "" : "if (" + prefix + std::to_string(s.mask) + ") ";
            if (s.mode == StoreMode::AtomicAdd) {
                if (is_reduced_float(stored)) {
                    line("#pragma omp critical");
                    line(guard + target + " = store_as<" + storage_type(stored) + ">(load(" +
                         target + ") + " + value + ");");
                } else {
                    line(guard.empty() ? "#pragma omp atomic" : "#pragma omp critical");
                    line(guard + target + " += " + value + ";");
                }
                continue;
            }
            if (s.mode == StoreMode::Sum)
                value = run_ + " == 0 ? " + value + " : " +
                        (is_reduced_float(stored) ? "load(" + target + ")" : target) + " + " +
                        value;
            if (is_reduced_float(stored))
                value = "store_as<" + storage_type(stored) + ">(" + value + ")";
            line(guard + target + " = " + value + ";");
        }
    }

    const Kernel& kernel_;
    std::string run_;  // the variable of the nest's run
    ExprSyntax syntax_;
    std::string out_;
    std::size_t indent_ = 0;
    bool round_ = true;
};

}  // namespace

std::string to_cpp_body(const Kernel& kernel, const std::string& symbol) {
    return CppPrinter(kernel).function(symbol);
}

std::string to_cpp(const Kernel& kernel, const std::string& symbol) {
    CppPrinter printer(kernel);
    std::string body = printer.function(symbol);
    return std::string(kCppPrelude) + "\n" + body + "\n" + printer.entry(symbol);
}

}  // namespace ingot
