// The Triton printer. The outer loops become one flat index `x` over programs, the loops of a phase
// one flat index `r` in blocks of RBLOCK; every value is a block [XBLOCK, 1] or [XBLOCK, RBLOCK].
// Where a block holds whole rows there is no loop, and what a phase leaves for the next ones stays
// in variables. A run (LoopKind::Run) is a loop around the phases, and a sum over it stays in a
// variable too, or is added up in memory. A contraction becomes tiles and tl.dot. Linear in the
// size of the kernel.
#include "codegen/text/triton.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "codegen/text/expr_printer.h"
#include "codegen/text/triton_blocks.h"
#include "codegen/text/triton_prelude.h"
#include "codegen/text/triton_prims.h"
#include "codegen/text/triton_reduce.h"
#include "ir/error.h"

namespace ingot {

namespace {

class TritonPrinter {
  public:
    TritonPrinter(const Kernel& kernel, std::string symbol)
        : kernel_(kernel), symbol_(std::move(symbol)) {
        syntax_.divide = "//";
        syntax_.min = "tl.minimum";
        syntax_.max = "tl.maximum";
    }

    TritonText module() {
        out_ = std::string(kTritonPrelude) + "\n\n# " + kernel_.name + "\n";
        for (std::size_t i = 0; i < kernel_.nests.size(); ++i) print_nest(kernel_.nests[i], i);
        if (kernel_.contraction) print_contraction(*kernel_.contraction);
        print_run();
        print_main();
        return {std::move(out_), std::move(functions_)};
    }

  private:
    void line(const std::string& text) { out_ += std::string(indent_ * 4, ' ') + text + "\n"; }
    static std::string buffer(std::size_t i) { return "b" + std::to_string(i); }
    std::string index(Expr e) const { return print_expr(e, syntax_); }
    bool is_scratch(std::size_t i) const {
        return kernel_.buffers[i].scope == BufferScope::Scratch;
    }
    std::string parameters(bool scratch) const {
        std::string p;
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i)
            if (scratch || !is_scratch(i)) p += buffer(i) + ", ";
        for (const Expr& s : kernel_.sizes) p += index(s) + ", ";
        return p + "error, ";
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

    // --- nests ---

    void print_nest(const Nest& nest, std::size_t id) {
        round_ = nest.round_intermediates;
        blocks_ = choose_blocks(kernel_, nest);
        integer_ = blocks_.wide ? "tl.int64" : "tl.int32";
        const std::vector<Loop> loops = parallel_loops(nest);
        points_ = points_of(loops);
        run_ = loops.size() < nest.loops.size() ? &nest.loops.back() : nullptr;
        sums_.clear();
        find_kept(nest);
        describe_function(id);
        out_ += "\n\n@triton.jit\n";
        line("def " + functions_.back().name + "(" + parameters(false) +
             "scratch, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):");
        ++indent_;
        line("xflat = tl.program_id(0).to(" + integer_ +
             ") * XBLOCK + tl.arange(0, XBLOCK)[:, None]");
        line("xmask = xflat < " + index(points_));
        place_scratch();
        unflatten(loops, "xflat");
        if (blocks_.whole_rows) line("rflat = tl.arange(0, RBLOCK)[None, :]");
        if (run_) open_run(nest);
        const bool waits = reads_what_was_stored(nest);
        for (std::size_t p = 0; p < nest.phases.size(); ++p) {
            if ((p > 0 || run_) && waits) line("tl.debug_barrier()");
            print_phase(nest.phases[p], p);
        }
        if (run_) close_run(nest);
        --indent_;
    }

    // --- runs ---

    // One program takes all points of a run, one behind the other.
    void open_run(const Nest& nest) {
        if (blocks_.whole_rows)
            for (const Phase& p : nest.phases)
                for (const Store& s : p.stores)
                    if (s.mode == StoreMode::Sum && !p.loops.empty()) {
                        const std::string name = "sum" + std::to_string(sums_.size());
                        sums_.emplace(&s, name);
                        line(name + " = tl.zeros([XBLOCK, RBLOCK], " +
                             triton_value_type(p.insts[s.value].dtype) + ")");
                    }
        line("for runflat in range(0, " + index(run_->extent) + "):");
        ++indent_;
        line(index(run_->var) + " = tl.zeros([1, 1], " + integer_ + ") + runflat");
    }
    void close_run(const Nest& nest) {
        --indent_;
        for (const Phase& p : nest.phases)
            for (const Store& s : p.stores) {
                const auto found = sums_.find(&s);
                if (found == sums_.end()) continue;
                unflatten(p.loops, "rflat");
                const auto b = static_cast<std::size_t>(s.buffer);
                zero_ = "tl.zeros([XBLOCK, RBLOCK], " + integer_ + ")";
                line("tl.store(" + pointer(b, s.offset) + ", " + found->second +
                     ", mask=xmask & (rflat < " + index(points_of(p.loops)) + "))");
            }
    }
    void print_sum(const Store& s, const std::string& value, const std::string& mask) {
        const auto b = static_cast<std::size_t>(s.buffer);
        if (const auto found = sums_.find(&s); found != sums_.end()) {
            line(found->second + " += tl.where(" + mask + ", " + value + ", 0)");
            return;
        }
        const std::string at = pointer(b, s.offset);
        const std::string before =
            "tl.load(" + at + ", mask=" + mask + " & (runflat > 0), other=0)";
        line("tl.store(" + at + ", " + before + " + tl.broadcast_to(" + value + ", " + shape_ +
             "), mask=" + mask + ")");
    }

    void describe_function(std::size_t id) {
        TritonFunction f;
        f.name = symbol_ + "_" + std::to_string(id);
        for (const KernelBuffer& b : kernel_.buffers)
            if (b.scope == BufferScope::Argument) f.arguments.push_back(triton_pointer(b.dtype));
        f.arguments.insert(f.arguments.end(), kernel_.sizes.size(), "i64");
        f.arguments.insert(f.arguments.end(), {"*i64", "*i8"});
        f.x_block = blocks_.x;
        f.r_block = blocks_.r;
        f.warps = blocks_.warps;
        f.points = points_;
        functions_.push_back(std::move(f));
    }

    // Rows of every point, one buffer behind the other.
    void place_scratch() {
        Expr offset = 0;
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
            const KernelBuffer& k = kernel_.buffers[i];
            if (!is_scratch(i) || in_variables_[i]) continue;
            line(buffer(i) + " = (scratch + " + index(offset) + ").to(tl.pointer_type(" +
                 triton_type(k.dtype) + "))");
            offset = offset + ceil_div(points_ * k.elements * Expr(bytes(k.dtype)), 16) * Expr(16);
        }
        functions_.back().scratch_bytes = offset;
    }

    bool reads_what_was_stored(const Nest& nest) const {
        const auto in_memory = [&](const Store& s) {
            return s.mode == StoreMode::Sum && !sums_.contains(&s);
        };
        for (const Phase& p : nest.phases)
            if (std::ranges::any_of(p.stores, in_memory)) return true;
        const auto written = [&](const Inst& i) {
            const auto b = static_cast<std::size_t>(i.buffer);
            return i.kind == InstKind::Load && kernel_.buffers[b].written && !in_variables_[b];
        };
        return std::ranges::any_of(
            nest.phases, [&](const Phase& p) { return std::ranges::any_of(p.insts, written); });
    }

    // --- what stays in variables from phase to phase ---

    // An offset with the phase's loop variable named alike in all phases.
    Expr common(const Phase& phase, Expr offset) const {
        if (!row_variable_ || offset.is_constant()) return offset;
        const Expr var = phase.loops[0].var;
        if (var == *row_variable_) return offset;
        return substitute(offset, [&](Expr s) -> std::optional<Expr> {
            if (s == var) return *row_variable_;
            return std::nullopt;
        });
    }

    // Scratch rows whose every load asks for the element that was stored at the same place of the
    // row need no memory.
    void find_kept(const Nest& nest) {
        row_variable_.reset();
        kept_.clear();
        in_variables_.assign(kernel_.buffers.size(), false);
        if (!blocks_.whole_rows) return;
        for (const Phase& p : nest.phases)
            if (!p.loops.empty() && !row_variable_) row_variable_ = p.loops[0].var;
        std::vector<std::optional<Expr>> place(kernel_.buffers.size());
        std::vector<bool> fits(kernel_.buffers.size(), true);
        const auto see = [&](const Phase& p, std::int32_t buffer, Expr offset, InstId mask) {
            const auto i = static_cast<std::size_t>(buffer);
            if (p.loops.empty() || mask != kNone) {
                fits[i] = false;
                return;
            }
            const Expr e = common(p, offset);
            if (place[i] && !(*place[i] == e)) fits[i] = false;
            place[i] = e;
        };
        for (const Phase& p : nest.phases) {
            for (const Inst& i : p.insts)
                if (i.kind == InstKind::Load) see(p, i.buffer, i.offset, i.mask);
            for (const Store& s : p.stores) see(p, s.buffer, s.offset, s.mask);
        }
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i)
            in_variables_[i] = fits[i] && is_scratch(i);
    }

    /// The variable that holds what the load asks for, if one does.
    const std::string* kept(const Phase& phase, const Inst& load) const {
        if (!row_variable_ || phase.loops.empty() || load.mask != kNone) return nullptr;
        const auto b = static_cast<std::size_t>(load.buffer);
        if (kernel_.buffers[b].written && !in_variables_[b]) return nullptr;
        const auto found = kept_.find({b, to_string(common(phase, load.offset))});
        return found == kept_.end() ? nullptr : &found->second;
    }
    void keep(const Phase& phase, std::int32_t buffer, Expr offset, const std::string& variable) {
        if (!row_variable_ || phase.loops.empty()) return;
        // A bound symbol may stand for another value in another phase.
        for (const Inst& i : phase.insts)
            if (i.kind == InstKind::Bind && contains(offset, i.offset)) return;
        kept_[{static_cast<std::size_t>(buffer), to_string(common(phase, offset))}] = variable;
    }

    // --- phases ---

    void print_phase(const Phase& phase, std::size_t p) {
        phase_ = &phase;
        const std::string number = std::to_string(p), prefix = "v" + number + "_";
        const bool loops = !phase.loops.empty();
        shape_ = loops ? "[XBLOCK, RBLOCK]" : "[XBLOCK, 1]";
        // A variable keeps its type through a loop: each phase has its own.
        mask_ = "mask" + number;
        zero_ = "zero" + number;
        for (std::size_t r = 0; r < phase.reductions.size(); ++r)
            declare(phase.reductions[r], reduction(p, r));
        const std::string extent = index(points_of(phase.loops));
        const bool loop = loops && !blocks_.whole_rows;
        if (loop) {
            line("for roffset in range(0, " + extent + ", RBLOCK):");
            ++indent_;
            line("rflat = roffset + tl.arange(0, RBLOCK)[None, :].to(" + integer_ + ")");
        }
        line(mask_ + " = xmask" + (loops ? " & (rflat < " + extent + ")" : ""));
        if (loops) unflatten(phase.loops, "rflat");
        line(zero_ + " = tl.zeros(" + shape_ + ", " + integer_ + ")");
        print_insts(phase.insts, prefix);
        for (std::size_t r = 0; r < phase.reductions.size(); ++r)
            accumulate(phase.reductions[r], reduction(p, r), prefix);
        print_stores(phase.stores, prefix);
        if (loop) --indent_;
        for (std::size_t r = 0; r < phase.reductions.size(); ++r)
            combine(phase.reductions[r], reduction(p, r));
        phase_ = nullptr;
    }

    static std::string reduction(std::size_t phase, std::size_t r) {
        return "r" + std::to_string(phase) + "_" + std::to_string(r);
    }
    void declare(const Reduction& r, const std::string& acc) {
        line(acc + " = tl.full(" + shape_ + ", " + triton_initial(r) + ", " +
             triton_value_type(r.dtype) + ")");
        if (is_arg(r.op))
            line(acc + "_at = tl.full(" + shape_ + ", 9223372036854775807, tl.int64)");
    }
    void accumulate(const Reduction& r, const std::string& acc, const std::string& prefix) {
        std::string v = "tl.broadcast_to(" + prefix + std::to_string(r.value) + ", " + shape_ + ")";
        if (is_arg(r.op)) {
            std::string i =
                "tl.broadcast_to(" + prefix + std::to_string(r.index) + ", " + shape_ + ")";
            std::string better = r.op == ReduceOp::ArgMax ? "better_max" : "better_min";
            line("better = " + mask_ + " & " + better + "(" + v + ", " + i + ", " + acc + ", " +
                 acc + "_at)");
            line(acc + "_at = tl.where(better, " + i + ", " + acc + "_at)");
            line(acc + " = tl.where(better, " + v + ", " + acc + ")");
            return;
        }
        line(acc + " = tl.where(" + mask_ + ", " + triton_combiner(r.op) + "(" + acc + ", " + v +
             "), " + acc + ")");
    }
    void combine(const Reduction& r, const std::string& acc) {
        if (is_arg(r.op)) {
            line(acc + ", " + acc + "_at = tl.reduce((" + acc + ", " + acc + "_at), 1, " +
                 triton_combiner(r.op) + ")");
            line(acc + "_at = " + acc + "_at[:, None]");
            line(acc + " = " + acc + "[:, None]");
            return;
        }
        line(acc + " = tl.reduce(" + acc + ", 1, " + triton_combiner(r.op) + ")[:, None]");
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
                value = triton_rounded(value, inst.dtype);
            const std::string name = prefix + std::to_string(i);
            line(name + " = " + value);
            if (inst.kind == InstKind::Load && inst.mask == kNone && phase_ != nullptr &&
                !kernel_.buffers[static_cast<std::size_t>(inst.buffer)].written)
                keep(*phase_, inst.buffer, inst.offset, name);
        }
    }
    void bind(const Inst& inst, const std::string& prefix) {
        std::string v = index(inst.offset);
        line(v + " = " + prefix + std::to_string(inst.operands[0]) + ".to(tl.int64)");
        if (inst.imm == kBindAny) return;
        std::string extent = "(" + index(inst.extent) + ")";
        if (inst.imm == kBindFromEnds)
            line(v + " = tl.where(" + v + " < 0, " + v + " + " + extent + ", " + v + ")");
        line("bad = " + mask_ + " & ((" + v + " < 0) | (" + v + " >= " + extent + "))");
        line("tl.store(error + " + zero_ + ", " + zero_ + " + 1, mask=bad)");
        line(v + " = tl.where(bad, 0, " + v + ")");
    }

    std::string pointer(std::size_t b, Expr offset) const {
        std::string at = index(offset) + " + " + zero_;
        if (is_scratch(b)) at += " + xflat * (" + index(kernel_.buffers[b].elements) + ")";
        return buffer(b) + " + (" + at + ")";
    }

    std::string expression(const Inst& inst, const std::vector<Inst>& insts,
                           const std::string& prefix) {
        switch (inst.kind) {
            case InstKind::Load: {
                std::size_t b = static_cast<std::size_t>(inst.buffer);
                if (phase_ != nullptr)
                    if (const std::string* variable = kept(*phase_, inst)) return *variable;
                std::string mask =
                    inst.mask == kNone ? mask_ : mask_ + " & " + prefix + std::to_string(inst.mask);
                std::string other =
                    inst.mask == kNone ? "0" : triton_literal(inst.constant, inst.dtype);
                return "tl.load(" + pointer(b, inst.offset) + ", mask=" + mask +
                       ", other=" + other + ").to(" + triton_value_type(inst.dtype) + ")";
            }
            case InstKind::Index:
                return "(" + index(inst.offset) + " + " + zero_ + ").to(" +
                       triton_value_type(inst.dtype) + ")";
            case InstKind::Constant:
                return "tl.full([1, 1], " + triton_literal(inst.constant, inst.dtype) + ", " +
                       triton_value_type(inst.dtype) + ")";
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
        std::vector<std::string> operands;
        for (InstId o : inst.operands) operands.push_back(prefix + std::to_string(o));
        return triton_prim(inst, insts[inst.operands[0]].dtype, operands);
    }

    void print_stores(const std::vector<Store>& stores, const std::string& prefix) {
        for (const Store& s : stores) {
            std::size_t b = static_cast<std::size_t>(s.buffer);
            std::string mask =
                s.mask == kNone ? mask_ : mask_ + " & " + prefix + std::to_string(s.mask);
            std::string value = prefix + std::to_string(s.value) + ".to(" +
                                triton_type(kernel_.buffers[b].dtype) + ")";
            if (s.mode == StoreMode::Sum) {
                print_sum(s, value, mask);
                continue;
            }
            if (phase_ != nullptr && in_variables_[b]) {
                const std::string name = prefix + "row" + std::to_string(b);
                line(name + " = " + value + ".to(" + triton_value_type(kernel_.buffers[b].dtype) +
                     ")");
                keep(*phase_, s.buffer, s.offset, name);
                continue;
            }
            std::string call = s.mode == StoreMode::AtomicAdd ? "tl.atomic_add(" : "tl.store(";
            line(call + pointer(b, s.offset) + ", tl.broadcast_to(" + value + ", " + shape_ +
                 "), mask=" + mask + ")");
        }
    }

    // Tiles of [XBLOCK, NBLOCK] outputs; operand values are computed as blocks and multiplied by
    // tl.dot.
    void print_contraction(const Contraction& c) {
        round_ = c.round_intermediates;
        integer_ = "tl.int64";
        mask_ = "mask";
        zero_ = "zero";
        in_variables_.assign(kernel_.buffers.size(), false);
        out_ += "\n\n@triton.jit\n";
        line("def " + symbol_ + "_0(" + parameters(true) +
             "mnumel, nnumel, knumel, XBLOCK: tl.constexpr, NBLOCK: tl.constexpr, RBLOCK: "
             "tl.constexpr):");
        ++indent_;
        line("bflat = tl.program_id(2).to(tl.int64)");
        unflatten(c.batch, "bflat");
        line("mflat = tl.program_id(0).to(tl.int64) * XBLOCK + tl.arange(0, XBLOCK)[:, None]");
        unflatten(c.m, "mflat");
        line("acc = tl.zeros([XBLOCK, NBLOCK], " + triton_value_type(c.accumulate) + ")");
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
        std::string type = is_reduced_float(t) ? triton_type(t) : triton_value_type(accumulate);
        line(last + "_block = tl.where(mask, " + last + ", 0).to(" + type + ")");
    }

    // --- launching ---

    void print_run() {
        out_ += "\n\n";
        line("def run(buffers, sizes, error):");
        ++indent_;
        line("import torch");
        const ExprSyntax saved = in_python();
        for (std::size_t i = 0; i < kernel_.sizes.size(); ++i)
            line(index(kernel_.sizes[i]) + " = sizes[" + std::to_string(i) + "]");
        int argument = 0;
        std::string arguments;
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
            if (!is_scratch(i)) line(buffer(i) + " = buffers[" + std::to_string(argument++) + "]");
            if (!is_scratch(i) || kernel_.contraction) arguments += buffer(i) + ", ";
        }
        for (const Expr& s : kernel_.sizes) arguments += index(s) + ", ";
        for (const TritonFunction& f : functions_) launch(f, arguments);
        if (kernel_.contraction) launch(*kernel_.contraction, arguments);
        syntax_ = saved;
        --indent_;
    }
    ExprSyntax in_python() {
        ExprSyntax saved = syntax_;
        syntax_.min = "min";
        syntax_.max = "max";
        syntax_.floor_div = "int.__floordiv__";
        syntax_.floor_mod = "int.__mod__";
        return saved;
    }
    static std::string torch_type(DType t) {
        std::string name = triton_type(t).substr(3);
        if (name == "int1") return "torch.bool";
        if (name == "float8e4nv") return "torch.float8_e4m3fn";
        if (name == "float8e5") return "torch.float8_e5m2";
        return "torch." + name;
    }
    void launch(const TritonFunction& f, const std::string& arguments) {
        const std::string x = std::to_string(f.x_block);
        line("points = " + index(f.points));
        line("scratch = torch.empty(" + index(max(f.scratch_bytes, 1)) +
             ", dtype=torch.int8, device=error.device)");
        line(f.name + "[(triton.cdiv(points, " + x + "),)](" + arguments +
             "error, scratch, XBLOCK=" + x + ", RBLOCK=" + std::to_string(f.r_block) +
             ", num_warps=" + std::to_string(f.warps) + ", enable_fp_fusion=False)");
    }
    void launch(const Contraction& c, const std::string& arguments) {
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i)
            if (is_scratch(i))
                line(buffer(i) + " = torch.empty((" + index(kernel_.buffers[i].elements) + ") * " +
                     index(points_of(c.m) * points_of(c.n) * points_of(c.batch)) +
                     ", dtype=" + torch_type(kernel_.buffers[i].dtype) + ", device=error.device)");
        line("mnumel, nnumel, knumel = " + index(points_of(c.m)) + ", " + index(points_of(c.n)) +
             ", " + index(points_of(c.k)));
        line(symbol_ + "_0[(triton.cdiv(mnumel, 64), triton.cdiv(nnumel, 64), " +
             index(points_of(c.batch)) + ")](" + arguments +
             "error, mnumel, nnumel, knumel, XBLOCK=64, NBLOCK=64, RBLOCK=32)");
    }

    // Sizes come from the command line; indices are zero, which is in range.
    void print_main() {
        out_ += "\n\n";
        line("if __name__ == \"__main__\":");
        ++indent_;
        const ExprSyntax saved = in_python();
        std::string names, defaults;
        for (const Expr& s : kernel_.sizes) {
            names += index(s) + ", ";
            defaults +=
                std::to_string(std::clamp<std::int64_t>(64, s.range().lo, s.range().hi)) + ", ";
        }
        line("import torch");
        if (!names.empty()) {
            line("import sys");
            line(names + "= [int(a) for a in sys.argv[1:]] or [" + defaults + "]");
        }
        line("torch.manual_seed(0)");
        std::string list;
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
            if (is_scratch(i)) continue;
            const KernelBuffer& k = kernel_.buffers[i];
            const std::string count = index(k.elements);
            const std::string make = is_float(k.dtype) ? "torch.randn" : "torch.zeros";
            line(buffer(i) + " = " + make + "(" + count + ", device=\"cuda\").to(" +
                 torch_type(k.dtype) + ")");
            list += buffer(i) + ", ";
        }
        line("error = torch.zeros(1, dtype=torch.int64, device=\"cuda\")");
        line("arguments = [" + list + "], [" + names + "], error");
        line("milliseconds = triton.testing.do_bench(lambda: run(*arguments))");
        line("print(f\"{milliseconds:.4f} ms, error {error.item()}\")");
        syntax_ = saved;
        --indent_;
    }

    const Kernel& kernel_;
    std::string symbol_;
    ExprSyntax syntax_;
    std::string out_;
    std::size_t indent_ = 0;
    std::vector<TritonFunction> functions_;
    // Of the nest, and of its phase, that is being printed.
    bool round_ = true;
    TritonBlocks blocks_;
    std::string integer_;  // the type of indices
    Expr points_;          // without the run's
    const Loop* run_ = nullptr;
    std::map<const Store*, std::string> sums_;  // over the run, in variables
    std::vector<bool> in_variables_;            // by buffer: a scratch row that needs no memory
    std::optional<Expr> row_variable_;
    std::map<std::pair<std::size_t, std::string>, std::string> kept_;  // by buffer and offset
    const Phase* phase_ = nullptr;
    std::string shape_, mask_, zero_;
};

}  // namespace

TritonText to_triton(const Kernel& kernel, const std::string& symbol) {
    return TritonPrinter(kernel, symbol).module();
}

}  // namespace ingot
