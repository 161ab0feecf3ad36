// The Triton printer. The outer loops become one flat index `x` over programs, the loops of a phase
// one flat index `r` in blocks of RBLOCK; every value is a block [XBLOCK, 1] or [XBLOCK, RBLOCK]. A
// contraction becomes tiles and tl.dot. Linear in the size of the kernel.
#include "codegen/text/triton.h"

#include <cmath>
#include <cstdio>

#include "codegen/text/expr_printer.h"
#include "codegen/text/triton_prelude.h"
#include "ir/error.h"

namespace ingot {

namespace {

std::string triton_type(DType t) {
    switch (t) {
        case DType::Bool:
            return "tl.int1";
        case DType::U8:
            return "tl.uint8";
        case DType::U16:
            return "tl.uint16";
        case DType::U32:
            return "tl.uint32";
        case DType::U64:
            return "tl.uint64";
        case DType::I8:
            return "tl.int8";
        case DType::I16:
            return "tl.int16";
        case DType::I32:
            return "tl.int32";
        case DType::I64:
            return "tl.int64";
        case DType::F8E4M3:
            return "tl.float8e4nv";
        case DType::F8E5M2:
            return "tl.float8e5";
        case DType::F16:
            return "tl.float16";
        case DType::BF16:
            return "tl.bfloat16";
        case DType::F32:
            return "tl.float32";
        case DType::F64:
            return "tl.float64";
        default:
            throw NotSupported("Triton has no complex numbers");
    }
}
std::string value_type(DType t) { return triton_type(compute_type(t)); }

std::string literal(const Scalar& s, DType t) {
    if (t == DType::Bool) return s.to_double() != 0 ? "True" : "False";
    if (is_int(t)) return std::to_string(s.to_int());
    double v = s.to_double();
    if (std::isnan(v)) return "float('nan')";
    if (std::isinf(v)) return v < 0 ? "float('-inf')" : "float('inf')";
    char text[64];
    std::snprintf(text, sizeof text, "%.17g", v);
    std::string out = text;
    return out.find_first_of(".e") == std::string::npos ? out + ".0" : out;
}

const char* operator_of(Prim p) {
    switch (p) {
        case Prim::Add:
            return "+";
        case Prim::Sub:
            return "-";
        case Prim::Mul:
            return "*";
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
        case Prim::ShiftLeft:
            return "<<";
        case Prim::ShiftRight:
            return ">>";
        default:
            return nullptr;
    }
}

// Functions of libdevice that keep the prim's name.
bool in_libdevice(Prim p) {
    switch (p) {
        case Prim::Acos:
        case Prim::Acosh:
        case Prim::Asin:
        case Prim::Asinh:
        case Prim::Atan:
        case Prim::Atan2:
        case Prim::Atanh:
        case Prim::Cbrt:
        case Prim::Ceil:
        case Prim::Copysign:
        case Prim::Cos:
        case Prim::Cosh:
        case Prim::Erf:
        case Prim::Erfc:
        case Prim::Erfcx:
        case Prim::Erfinv:
        case Prim::Exp:
        case Prim::Exp2:
        case Prim::Expm1:
        case Prim::Floor:
        case Prim::Fma:
        case Prim::Hypot:
        case Prim::Lgamma:
        case Prim::Log:
        case Prim::Log10:
        case Prim::Log1p:
        case Prim::Log2:
        case Prim::Nextafter:
        case Prim::Pow:
        case Prim::Rsqrt:
        case Prim::Sin:
        case Prim::Sinh:
        case Prim::Sqrt:
        case Prim::Tan:
        case Prim::Tanh:
        case Prim::Trunc:
            return true;
        default:
            return false;
    }
}

class TritonPrinter {
  public:
    TritonPrinter(const Kernel& kernel, std::string symbol)
        : kernel_(kernel), symbol_(std::move(symbol)) {
        syntax_.divide = "//";
        syntax_.min = "tl.minimum";
        syntax_.max = "tl.maximum";
    }

    std::string module() {
        out_ = std::string(kTritonPrelude) + "\n\n# " + kernel_.name + "\n";
        for (std::size_t i = 0; i < kernel_.nests.size(); ++i) print_nest(kernel_.nests[i], i);
        if (kernel_.contraction) print_contraction(*kernel_.contraction);
        print_run();
        return out_;
    }

  private:
    void line(const std::string& text) { out_ += std::string(indent_ * 4, ' ') + text + "\n"; }
    static std::string buffer(std::size_t i) { return "b" + std::to_string(i); }
    std::string index(Expr e) const { return print_expr(e, syntax_); }
    std::string parameters() const {
        std::string p;
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) p += buffer(i) + ", ";
        for (const Expr& s : kernel_.sizes) p += index(s) + ", ";
        return p;
    }

    // Loop variables from a flat index; the last loop runs fastest.
    void unflatten(const std::vector<Loop>& loops, const std::string& flat) {
        std::string rest = flat;
        for (std::size_t i = loops.size(); i-- > 0;) {
            std::string extent = "(" + index(loops[i].extent) + ")";
            line(index(loops[i].var) + " = " + (i == 0 ? rest : rest + " % " + extent));
            if (i > 0) {
                std::string next = flat + "_" + std::to_string(i);
                line(next + " = " + rest + " // " + extent);
                rest = next;
            }
        }
    }
    static Expr extent(const std::vector<Loop>& loops) {
        Expr total = 1;
        for (const Loop& l : loops) total = total * l.extent;
        return total;
    }

    void print_nest(const Nest& nest, std::size_t id) {
        round_ = nest.round_intermediates;
        out_ += "\n\n@triton.jit\n";
        line("def " + symbol_ + "_" + std::to_string(id) + "(" + parameters() +
             "error, xnumel, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):");
        ++indent_;
        line("xflat = tl.program_id(0).to(tl.int64) * XBLOCK + tl.arange(0, XBLOCK)[:, None]");
        line("xmask = xflat < xnumel");
        unflatten(nest.loops, "xflat");
        for (std::size_t p = 0; p < nest.phases.size(); ++p) {
            if (p > 0) line("tl.debug_barrier()");
            print_phase(nest.phases[p], p);
        }
        --indent_;
    }

    void print_phase(const Phase& phase, std::size_t p) {
        std::string prefix = "v" + std::to_string(p) + "_";
        bool loops = !phase.loops.empty();
        shape_ = loops ? "[XBLOCK, RBLOCK]" : "[XBLOCK, 1]";
        for (std::size_t r = 0; r < phase.reductions.size(); ++r)
            declare(phase.reductions[r], reduction(p, r));
        if (loops) {
            line("rnumel = " + index(extent(phase.loops)));
            line("for roffset in range(0, rnumel, RBLOCK):");
            ++indent_;
            line("rflat = roffset + tl.arange(0, RBLOCK)[None, :].to(tl.int64)");
            line("mask = xmask & (rflat < rnumel)");
            unflatten(phase.loops, "rflat");
        } else {
            line("mask = xmask");
        }
        line("zero = tl.zeros(" + shape_ + ", tl.int64)");
        print_insts(phase.insts, prefix);
        for (std::size_t r = 0; r < phase.reductions.size(); ++r)
            accumulate(phase.reductions[r], reduction(p, r), prefix);
        print_stores(phase.stores, prefix);
        if (loops) --indent_;
        for (std::size_t r = 0; r < phase.reductions.size(); ++r)
            combine(phase.reductions[r], reduction(p, r));
    }

    static std::string reduction(std::size_t phase, std::size_t r) {
        return "r" + std::to_string(phase) + "_" + std::to_string(r);
    }
    static bool is_arg(ReduceOp op) { return op == ReduceOp::ArgMax || op == ReduceOp::ArgMin; }

    static std::string initial(const Reduction& r) {
        bool real = is_float(r.dtype);
        switch (r.op) {
            case ReduceOp::Sum:
            case ReduceOp::Or:
            case ReduceOp::Xor:
                return "0";
            case ReduceOp::Prod:
                return "1";
            case ReduceOp::And:
                return r.dtype == DType::Bool ? "1" : "-1";
            case ReduceOp::Max:
            case ReduceOp::ArgMax:
                return real ? "float('-inf')" : lowest(r.dtype);
            case ReduceOp::Min:
            case ReduceOp::ArgMin:
                return real ? "float('inf')" : highest(r.dtype);
        }
        return {};
    }
    static std::string lowest(DType t) {
        if (!is_signed_int(t)) return "0";
        return t == DType::I64 ? "-9223372036854775808"
                               : std::to_string(-(std::int64_t{1} << (8 * bytes(t) - 1)));
    }
    static std::string highest(DType t) {
        if (t == DType::Bool) return "1";
        if (t == DType::I64) return "9223372036854775807";
        if (t == DType::U64) return "18446744073709551615";
        return std::to_string((std::int64_t{1} << (8 * bytes(t) - (is_signed_int(t) ? 1 : 0))) - 1);
    }

    void declare(const Reduction& r, const std::string& acc) {
        line(acc + " = tl.full(" + shape_ + ", " + initial(r) + ", " + value_type(r.dtype) + ")");
        if (is_arg(r.op))
            line(acc + "_at = tl.full(" + shape_ + ", 9223372036854775807, tl.int64)");
    }
    void accumulate(const Reduction& r, const std::string& acc, const std::string& prefix) {
        std::string v = "tl.broadcast_to(" + prefix + std::to_string(r.value) + ", " + shape_ + ")";
        if (is_arg(r.op)) {
            std::string i =
                "tl.broadcast_to(" + prefix + std::to_string(r.index) + ", " + shape_ + ")";
            std::string better = r.op == ReduceOp::ArgMax ? "better_max" : "better_min";
            line("better = mask & " + better + "(" + v + ", " + i + ", " + acc + ", " + acc +
                 "_at)");
            line(acc + "_at = tl.where(better, " + i + ", " + acc + "_at)");
            line(acc + " = tl.where(better, " + v + ", " + acc + ")");
            return;
        }
        line(acc + " = tl.where(mask, " + combiner(r.op) + "(" + acc + ", " + v + "), " + acc +
             ")");
    }
    static std::string combiner(ReduceOp op) {
        switch (op) {
            case ReduceOp::Sum:
                return "combine_add";
            case ReduceOp::Prod:
                return "combine_mul";
            case ReduceOp::Max:
                return "p_maximum";
            case ReduceOp::Min:
                return "p_minimum";
            case ReduceOp::And:
                return "combine_and";
            case ReduceOp::Or:
                return "combine_or";
            case ReduceOp::Xor:
                return "combine_xor";
            case ReduceOp::ArgMax:
                return "combine_argmax";
            case ReduceOp::ArgMin:
                return "combine_argmin";
        }
        return {};
    }
    void combine(const Reduction& r, const std::string& acc) {
        if (is_arg(r.op)) {
            line(acc + ", " + acc + "_at = tl.reduce((" + acc + ", " + acc + "_at), 1, " +
                 combiner(r.op) + ")");
            line(acc + "_at = " + acc + "_at[:, None]");
            line(acc + " = " + acc + "[:, None]");
            return;
        }
        line(acc + " = tl.reduce(" + acc + ", 1, " + combiner(r.op) + ")[:, None]");
    }

    void print_insts(const std::vector<Inst>& insts, const std::string& prefix) {
        for (std::size_t i = 0; i < insts.size(); ++i) {
            const Inst& inst = insts[i];
            if (inst.kind == InstKind::Bind) {
                bind(inst, prefix);
                continue;
            }
            std::string value = expression(inst, insts, prefix);
            if (inst.kind == InstKind::Prim && round_ && is_reduced_float(inst.dtype))
                value = rounded(value, inst.dtype);
            line(prefix + std::to_string(i) + " = " + value);
        }
    }
    static std::string rounded(const std::string& v, DType t) {
        return "(" + v + ").to(" + triton_type(t) + ").to(tl.float32)";
    }

    void bind(const Inst& inst, const std::string& prefix) {
        std::string v = index(inst.offset);
        line(v + " = " + prefix + std::to_string(inst.operands[0]) + ".to(tl.int64)");
        if (inst.imm != 1) return;
        std::string extent = "(" + index(inst.extent) + ")";
        line(v + " = tl.where(" + v + " < 0, " + v + " + " + extent + ", " + v + ")");
        line("bad = mask & ((" + v + " < 0) | (" + v + " >= " + extent + "))");
        line("tl.store(error + zero, zero + 1, mask=bad)");
        line(v + " = tl.where(bad, 0, " + v + ")");
    }

    std::string pointer(std::size_t b, Expr offset) const {
        std::string at = index(offset) + " + zero";
        if (kernel_.buffers[b].scope == BufferScope::Scratch)
            at += " + xflat * (" + index(kernel_.buffers[b].elements) + ")";
        return buffer(b) + " + (" + at + ")";
    }

    std::string expression(const Inst& inst, const std::vector<Inst>& insts,
                           const std::string& prefix) {
        auto operand = [&](std::size_t i) { return prefix + std::to_string(inst.operands[i]); };
        switch (inst.kind) {
            case InstKind::Load: {
                std::size_t b = static_cast<std::size_t>(inst.buffer);
                std::string mask =
                    inst.mask == kNone ? "mask" : "mask & " + prefix + std::to_string(inst.mask);
                std::string other = inst.mask == kNone ? "0" : literal(inst.constant, inst.dtype);
                return "tl.load(" + pointer(b, inst.offset) + ", mask=" + mask +
                       ", other=" + other + ").to(" + value_type(inst.dtype) + ")";
            }
            case InstKind::Index:
                return "(" + index(inst.offset) + " + zero).to(" + value_type(inst.dtype) + ")";
            case InstKind::Constant:
                return "tl.full([1, 1], " + literal(inst.constant, inst.dtype) + ", " +
                       value_type(inst.dtype) + ")";
            case InstKind::Reduced:
                return reduction(static_cast<std::size_t>(inst.phase),
                                 static_cast<std::size_t>(inst.reduction)) +
                       (inst.component == 1 ? "_at" : "");
            case InstKind::Accumulator:
                return "acc";
            case InstKind::Bind:
                return {};
            case InstKind::Prim:
                break;
        }
        return prim(inst, insts[inst.operands[0]].dtype, operand);
    }

    template <class Operand>
    std::string prim(const Inst& inst, DType from, const Operand& operand) {
        std::string a = operand(0), b = inst.operands.size() > 1 ? operand(1) : "";
        bool real = is_float(from);
        std::string kind = real ? "p_float_" : "p_int_";
        switch (inst.prim) {
            case Prim::Convert:
                return convert(a, from, inst.dtype);
            case Prim::Bitcast:
                return a + ".to(" + triton_type(inst.dtype) + ", bitcast=True)";
            case Prim::Select:
                return "tl.where(" + a + ", " + b + ", " + operand(2) + ")";
            // Triton's own division and square root of f32 are approximate.
            case Prim::Div:
                return "libdevice.div_rn(" + a + ", " + b + ")";
            case Prim::Sqrt:
                return "libdevice.sqrt_rn(" + a + ")";
            case Prim::Neg:
                return "-" + a;
            case Prim::Abs:
                return is_unsigned_int(from) || from == DType::Bool ? a : "tl.abs(" + a + ")";
            case Prim::Reciprocal:
                return "libdevice.div_rn(tl.full(" + a + ".shape, 1.0, " + a + ".dtype), " + a +
                       ")";
            case Prim::LogicalNot:
                return "(" + a + " == 0)";
            case Prim::LogicalAnd:
                return "(" + a + " != 0) & (" + b + " != 0)";
            case Prim::LogicalOr:
                return "(" + a + " != 0) | (" + b + " != 0)";
            case Prim::LogicalXor:
                return "(" + a + " != 0) ^ (" + b + " != 0)";
            case Prim::BitwiseNot:
                return from == DType::Bool ? "(" + a + " == 0)" : "~" + a;
            case Prim::IsNan:
                return "(" + a + " != " + a + ")";
            case Prim::IsInf:
                return real ? "(tl.abs(" + a + ") == float('inf'))" : "(" + a + " != " + a + ")";
            case Prim::IsFinite:
                return real ? "(tl.abs(" + a + ") < float('inf'))" : "(" + a + " == " + a + ")";
            case Prim::Round:
                return real ? "libdevice.nearbyint(" + a + ")" : a;
            case Prim::Frac:
                return a + " - libdevice.trunc(" + a + ")";
            case Prim::Remainder:
                return kind + "remainder(" + a + ", " + b + ")";
            case Prim::FloorDiv:
                return kind + "floor_div(" + a + ", " + b + ")";
            case Prim::TruncDiv:
                return real ? "libdevice.trunc(" + a + " / " + b + ")"
                            : "p_int_trunc_div(" + a + ", " + b + ")";
            case Prim::Fmod:
                return real ? "libdevice.fmod(" + a + ", " + b + ")"
                            : "p_int_fmod(" + a + ", " + b + ")";
            case Prim::Signbit:
                return real ? "(libdevice.copysign(" + a + " * 0 + 1.0, " + a + ") < 0)"
                            : "(" + a + " < 0)";
            default:
                break;
        }
        if (!real &&
            (inst.prim == Prim::Floor || inst.prim == Prim::Ceil || inst.prim == Prim::Trunc))
            return a;
        if (from == DType::Bool && inst.prim == Prim::Add) return a + " | " + b;
        if (from == DType::Bool && inst.prim == Prim::Mul) return a + " & " + b;
        if (const char* op = operator_of(inst.prim)) return "(" + a + " " + op + " " + b + ")";
        std::string callee = "p_" + std::string(name(inst.prim));
        if (in_libdevice(inst.prim))
            callee = "libdevice." + std::string(name(inst.prim));
        else if (kTritonPrelude.find("def " + callee + "(") == std::string_view::npos)
            throw NotSupported("no Triton text for the prim '" + std::string(name(inst.prim)) +
                               "'");
        std::string arguments;
        for (std::size_t i = 0; i < inst.operands.size(); ++i)
            arguments += (i ? ", " : "") + operand(i);
        return callee + "(" + arguments + ")";
    }

    static std::string convert(const std::string& v, DType from, DType to) {
        if (to == DType::Bool) return "(" + v + " != 0)";
        if (is_reduced_float(to)) return rounded(v, to);
        if (is_float(from) && is_int(to) && bytes(to) < 8)
            return v + ".to(tl.int64).to(" + triton_type(to) + ")";
        return v + ".to(" + triton_type(to) + ")";
    }

    void print_stores(const std::vector<Store>& stores, const std::string& prefix) {
        for (const Store& s : stores) {
            std::size_t b = static_cast<std::size_t>(s.buffer);
            std::string mask =
                s.mask == kNone ? "mask" : "mask & " + prefix + std::to_string(s.mask);
            std::string value = prefix + std::to_string(s.value) + ".to(" +
                                triton_type(kernel_.buffers[b].dtype) + ")";
            if (s.mode == StoreMode::Sum) throw NotSupported("sums over a run have no Triton form");
            std::string call = s.mode == StoreMode::AtomicAdd ? "tl.atomic_add(" : "tl.store(";
            line(call + pointer(b, s.offset) + ", tl.broadcast_to(" + value + ", " + shape_ +
                 "), mask=" + mask + ")");
        }
    }

    // Tiles of [XBLOCK, NBLOCK] outputs; operand values are computed as blocks and multiplied by
    // tl.dot.
    void print_contraction(const Contraction& c) {
        round_ = c.round_intermediates;
        out_ += "\n\n@triton.jit\n";
        line("def " + symbol_ + "_0(" + parameters() +
             "error, mnumel, nnumel, knumel, XBLOCK: tl.constexpr, NBLOCK: tl.constexpr, RBLOCK: "
             "tl.constexpr):");
        ++indent_;
        line("bflat = tl.program_id(2).to(tl.int64)");
        unflatten(c.batch, "bflat");
        line("mflat = tl.program_id(0).to(tl.int64) * XBLOCK + tl.arange(0, XBLOCK)[:, None]");
        unflatten(c.m, "mflat");
        line("acc = tl.zeros([XBLOCK, NBLOCK], " + value_type(c.accumulate) + ")");
        line("for koffset in range(0, knumel, RBLOCK):");
        ++indent_;
        line("kflat = koffset + tl.arange(0, RBLOCK)[None, :].to(tl.int64)");
        unflatten(c.k, "kflat");
        operand(c.a_insts, "a", "[XBLOCK, RBLOCK]", "(mflat < mnumel) & (kflat < knumel)",
                c.accumulate);
        line("kflat = koffset + tl.arange(0, RBLOCK)[:, None].to(tl.int64)");
        unflatten(c.k, "kflat");
        n_index("[None, :]", c.n);
        operand(c.b_insts, "w", "[RBLOCK, NBLOCK]", "(kflat < knumel) & (nflat < nnumel)",
                c.accumulate);
        std::string a = "a" + std::to_string(c.a_insts.size() - 1),
                    w = "w" + std::to_string(c.b_insts.size() - 1);
        line("acc = tl.dot(" + a + "_block, " + w + "_block, acc, input_precision=\"ieee\")");
        --indent_;
        n_index("[None, :]", c.n);
        shape_ = "[XBLOCK, NBLOCK]";
        line("mask = (mflat < mnumel) & (nflat < nnumel)");
        line("zero = tl.zeros(" + shape_ + ", tl.int64)");
        print_insts(c.epilogue.insts, "v");
        print_stores(c.epilogue.stores, "v");
        --indent_;
    }
    void n_index(const std::string& axis, const std::vector<Loop>& n) {
        line("nflat = tl.program_id(1).to(tl.int64) * NBLOCK + tl.arange(0, NBLOCK)" + axis);
        unflatten(n, "nflat");
    }
    void operand(const std::vector<Inst>& insts, const std::string& prefix,
                 const std::string& shape, const std::string& mask, DType accumulate) {
        shape_ = shape;
        line("mask = " + mask);
        line("zero = tl.zeros(" + shape + ", tl.int64)");
        print_insts(insts, prefix);
        std::string last = prefix + std::to_string(insts.size() - 1);
        DType t = insts.back().dtype;
        // tl.dot multiplies reduced floats on the tensor cores; others in the accumulator's type.
        std::string type = is_reduced_float(t) ? triton_type(t) : value_type(accumulate);
        line(last + "_block = tl.where(mask, " + last + ", 0).to(" + type + ")");
    }

    void print_run() {
        out_ += "\n\n";
        line("def run(buffers, sizes, error):");
        ++indent_;
        ExprSyntax saved = syntax_;
        syntax_.min = "min";
        syntax_.max = "max";
        for (std::size_t i = 0; i < kernel_.sizes.size(); ++i)
            line(index(kernel_.sizes[i]) + " = sizes[" + std::to_string(i) + "]");
        int argument = 0;
        std::string arguments;
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
            if (kernel_.buffers[i].scope == BufferScope::Argument)
                line(buffer(i) + " = buffers[" + std::to_string(argument++) + "]");
            arguments += buffer(i) + ", ";
        }
        for (const Expr& s : kernel_.sizes) arguments += index(s) + ", ";
        for (std::size_t i = 0; i < kernel_.nests.size(); ++i)
            launch(kernel_.nests[i], i, arguments);
        if (kernel_.contraction) launch(*kernel_.contraction, arguments);
        syntax_ = saved;
        --indent_;
    }
    void scratch(const std::string& points) {
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i)
            if (kernel_.buffers[i].scope == BufferScope::Scratch)
                line(buffer(i) + " = torch.empty((" + index(kernel_.buffers[i].elements) + ") * " +
                     points + ", dtype=" + torch_type(kernel_.buffers[i].dtype) +
                     ", device=error.device)");
    }
    static std::string torch_type(DType t) {
        std::string name = triton_type(t).substr(3);
        if (name == "int1") return "torch.bool";
        if (name == "float8e4nv") return "torch.float8_e4m3fn";
        if (name == "float8e5") return "torch.float8_e5m2";
        return "torch." + name;
    }
    void launch(const Nest& nest, std::size_t id, const std::string& arguments) {
        bool loops = false;
        for (const Phase& p : nest.phases) loops |= !p.loops.empty();
        line("xnumel = " + index(extent(nest.loops)));
        scratch("xnumel");
        std::string x = loops ? "1" : "256", r = loops ? "1024" : "1";
        line(symbol_ + "_" + std::to_string(id) + "[(triton.cdiv(xnumel, " + x + "),)](" +
             arguments + "error, xnumel, XBLOCK=" + x + ", RBLOCK=" + r +
             ", enable_fp_fusion=False)");
    }
    void launch(const Contraction& c, const std::string& arguments) {
        line("mnumel, nnumel, knumel = " + index(extent(c.m)) + ", " + index(extent(c.n)) + ", " +
             index(extent(c.k)));
        line(symbol_ + "_0[(triton.cdiv(mnumel, 64), triton.cdiv(nnumel, 64), " +
             index(extent(c.batch)) + ")](" + arguments +
             "error, mnumel, nnumel, knumel, XBLOCK=64, NBLOCK=64, RBLOCK=32)");
    }

    const Kernel& kernel_;
    std::string symbol_;
    ExprSyntax syntax_;
    std::string out_;
    std::string shape_;
    std::size_t indent_ = 0;
    bool round_ = true;
};

}  // namespace

std::string to_triton(const Kernel& kernel, const std::string& symbol) {
    return TritonPrinter(kernel, symbol).module();
}

}  // namespace ingot
