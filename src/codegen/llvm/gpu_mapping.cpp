// See gpu_mapping.h.
#include "codegen/llvm/gpu_mapping.h"

#include <algorithm>
#include <bit>

namespace ingot::codegen {

namespace {

constexpr std::int64_t kShortLoop = 64;     // below this a thread walks a phase's loops alone
constexpr std::int64_t kShortRow = 32;      // but not rows that lie side by side, from this on
constexpr std::int64_t kSegment = 64;       // bytes that lanes of a row read at once, at least
constexpr std::int64_t kLargeWindow = 256;  // elements
// Loads of elements that so many points share may take lane after lane, in short bodies.
constexpr std::int64_t kRepeated = 2, kOften = 64, kMostGathering = 8;
constexpr std::int64_t kShortKept = 512;  // elements of a row
// Columns kept in registers: rows, values of a thread, warps that share them; blocks that keep a
// GPU busy.
constexpr std::int64_t kMostKeptRows = 1024, kKeptValues = 64, kBusyBlocks = 264;
constexpr unsigned kMostKeptParts = 16, kThreadsOfColumns = 512;
constexpr unsigned kTilesAtOnce = 4;  // of a multiprocessor, of few accesses a thread
constexpr std::int64_t kFewOfTile = 8;
constexpr double kCostOfStep = 0.08;        // of an exchange, in passes over a row
constexpr unsigned kMostThreads = 1024;     // of a block
constexpr std::int64_t kBusy = 132 * 1024;  // threads that keep a large GPU busy
constexpr unsigned kVectorBytes = 16;
// Threads with many registers, or that walk loops, fill a multiprocessor better in small blocks.
// Others are done so soon that small blocks could not be started fast enough (0.8 in a nanosecond).
constexpr unsigned kThreadsOfBusy = 128;
// Threads of a multiprocessor, at least, for rows in few pieces a thread and for runs: of one piece
// a thread, or of elements that fill as many registers as two.
constexpr unsigned kThreadsOfPieces = 768, kThreadsOfRuns = 1152, kThreadsOfWideRuns = 576;
constexpr unsigned kElementsOfRuns = 8;  // of a thread, up to which it is one piece
constexpr std::int64_t kWideRuns = 256;  // pieces from which on threads of runs have two
constexpr unsigned kMostParts = 16, kLeastParts = 4;  // warps of a block that share columns
constexpr std::int64_t kRowsOfPart = 8;               // each, at least
constexpr std::int64_t kRegisters = 65536, kWorkingRegisters = 20,  // of a multiprocessor, a thread
    kSummingRegisters = 32;
constexpr std::ptrdiff_t kManyLoads = 5;
// Blocks of windows (schedule/window_blocks.h): a thread has many accesses on their way at once,
// and sums in registers.
constexpr std::size_t kBlockInsts = 64;
constexpr std::size_t kMostSums = 112;

class Mapper {
  public:
    Mapper(const Kernel& kernel, const Nest& nest, IndexEmitter& index, const NestForm& form)
        : kernel_(kernel), nest_(nest), index_(index), form_(form) {}

    GpuMapping run() {
        GpuMapping m;
        m.tile = tile_of(kernel_, nest_, index_);
        if (m.tile) {
            const std::int64_t elements = m.tile->along * m.tile->across;
            const bool many = elements / m.tile->lanes_read > kFewOfTile * GpuTile::kThreads;
            m.resident = many ? kTilesAtOnce / 2 : kTilesAtOnce;
            return m;
        }
        if (keeps_columns(m)) return m;
        const bool columns = walks_columns();
        m.rows = has_run() || ((wants_rows() || has_short_rows()) && !columns);
        if (m.rows)
            choose_row(m);
        else
            choose_points(m, threads_enough(columns));
        if (!m.rows && form_.threads != 0) m.threads = form_.threads;
        if (!m.rows && m.lanes == 1) choose_copies(m);
        if (columns && m.lanes == 1 && parts_of_columns() > 1) {
            m.parts = parts_of_columns();
            m.threads = kWarp * m.parts;
        }
        return m;
    }

  private:
    bool wants_rows() const {
        for (const Phase& phase : nest_.phases) {
            Expr n = extent_of(phase.loops);
            if (!n.is_constant()) return true;
            if (n.constant() >= kShortLoop && !is_window(phase)) return true;
        }
        return false;
    }

    // A window of an image, in several loops, of one of many points: neighbouring threads share
    // what a cache holds.
    bool is_window(const Phase& phase) const {
        const Expr points = extent_of(nest_.loops);
        return phase.loops.size() > 1 && extent_of(phase.loops).constant() < kLargeWindow &&
               points.is_constant() && points.constant() >= kBusy / 4;
    }

    // Rows that a thread could walk alone, but whose neighbours in memory are their own elements.
    bool has_short_rows() {
        if (form_.threads != 0) return false;
        Expr row = 0;
        for (const Phase& p : nest_.phases) {
            if (p.loops.empty()) continue;
            const Expr n = extent_of(p.loops);
            if (p.loops.size() != 1 || !n.is_constant() || n.constant() < kShortRow ||
                !(row.is(0) || row == n))
                return false;
            row = n;
            index_.set_vector(p.loops[0].var, 2, 2);
            const bool beside = std::ranges::any_of(p.insts, [&](const Inst& i) {
                const auto stride = index_.lane_stride(i.offset);
                return i.kind == InstKind::Load && stride && stride->is(1);
            });
            index_.clear_vector();
            if (!beside) return false;
        }
        return !row.is(0);
    }

    bool has_run() const {
        return !nest_.loops.empty() && nest_.loops.back().kind == LoopKind::Run;
    }

    bool has_scratch() const {
        return std::ranges::any_of(
            kernel_.buffers, [](const KernelBuffer& b) { return b.scope == BufferScope::Scratch; });
    }

    // Whether the phases' loops step over what neighbouring outer points read side by side, and
    // there are points enough for a thread each.
    bool walks_columns() {
        const Expr points = extent_of(nest_.loops);
        if (nest_.loops.empty() || !points.is_constant() || has_scratch()) return false;
        if (points.constant() < kBusy / 8 && parts_of_columns() == 1) return false;
        const auto stride = [&](const Inst& i, Expr var) {
            index_.set_vector(var, 2, 2);
            const auto found = index_.lane_stride(i.offset);
            index_.clear_vector();
            return found;
        };
        bool across = false;
        for (const Phase& p : nest_.phases) {
            if (p.loops.empty()) continue;
            for (const Inst& i : p.insts) {
                if (i.kind != InstKind::Load) continue;
                const auto along = stride(i, p.loops.back().var);
                const auto beside = stride(i, nest_.loops.back().var);
                // What is the same for all columns (a row's mean) decides nothing.
                if (along && along->is(1) && !(beside && beside->is(0))) return false;
                across = across || (beside && beside->is(1));
            }
        }
        return across;
    }

    // Columns that several phases walk: a thread keeps its elements of neighbouring ones in
    // registers, all of them or, with the warps of its block, a part.
    bool keeps_columns(GpuMapping& m) {
        const Expr points = extent_of(nest_.loops);
        if (!(form_ == NestForm{}) || has_run() || nest_.loops.empty() || !points.is_constant())
            return false;
        std::int64_t rows = 0;
        int walks = 0;
        bool across = false;
        const Loop& last = nest_.loops.back();
        for (const Phase& p : nest_.phases) {
            if (p.loops.empty()) continue;
            const Expr n = extent_of(p.loops);
            if (p.loops.size() != 1 || !n.is_constant() || (rows != 0 && n.constant() != rows))
                return false;
            rows = n.constant();
            ++walks;
            for (const Inst& i : p.insts) {
                if (i.kind == InstKind::Bind) return false;
                if (i.kind != InstKind::Load) continue;
                if (is_scratch(i.buffer)) {
                    if (!(i.offset == p.loops[0].var)) return false;
                    continue;
                }
                const auto along = stride_of(i.offset, p.loops[0].var);
                const auto beside = stride_of(i.offset, last.var);
                if (along && along->is(1) && !(beside && beside->is(0))) return false;
                across = across || (beside && beside->is(1) && !(along && along->is(0)));
            }
            for (const Store& s : p.stores)
                if (s.mode != StoreMode::Write ||
                    (is_scratch(s.buffer) && !(s.offset == p.loops[0].var)))
                    return false;
        }
        if (!across || walks < 2 || rows > kMostKeptRows) return false;
        const std::int64_t values = std::max<std::int64_t>(1, rows_of_piece());
        bool found = false;
        // What warps exchange takes longer than narrower accesses.
        for (unsigned lanes = std::min(most_lanes(false), 4u); lanes > 0; lanes /= 2) {
            if (!last.extent.is_constant() || last.extent.constant() % lanes != 0) continue;
            const auto fits = [&](const Phase& p) { return smooth(p, last.var, lanes); };
            if (lanes > 1 && !std::ranges::all_of(nest_.phases, fits)) continue;
            unsigned parts = 1;
            while (parts < kMostKeptParts && whole(rows, parts) * lanes * values > kKeptValues)
                parts *= 2;
            const std::int64_t each = whole(rows, parts);
            if (each * lanes * values > kKeptValues) continue;
            // The widest of all, or narrower ones that keep the GPU busy.
            const bool busy = points.constant() / (kWarp * lanes) >= kBusyBlocks;
            if (found && !busy && parts >= m.parts) break;
            found = true;
            m.lanes = lanes;
            m.parts = parts;
            m.each = static_cast<unsigned>(each);
            if (busy) break;
        }
        if (!found) return false;
        m.single = true;
        m.pieces = rows;
        m.threads = m.parts == 1 ? 4 * kWarp : kWarp * m.parts;
        m.resident = kThreadsOfColumns / m.threads;
        return true;
    }
    bool is_scratch(std::int32_t buffer) const {
        return kernel_.buffers[static_cast<std::size_t>(buffer)].scope == BufferScope::Scratch;
    }
    std::optional<Expr> stride_of(Expr offset, Expr var) {
        index_.set_vector(var, 2, 2);
        const auto found = index_.lane_stride(offset);
        index_.clear_vector();
        return found;
    }
    // Values that the phases read along their loops and each point has of its own.
    std::int64_t rows_of_piece() const {
        std::vector<std::int32_t> seen;
        for (const Phase& p : nest_.phases)
            for (const Inst& i : p.insts)
                if (i.kind == InstKind::Load && !p.loops.empty() &&
                    contains(i.offset, p.loops[0].var) &&
                    (is_scratch(i.buffer) || contains(i.offset, nest_.loops.back().var)) &&
                    std::ranges::find(seen, i.buffer) == seen.end())
                    seen.push_back(i.buffer);
        return static_cast<std::int64_t>(seen.size());
    }

    // Warps that share columns where there are few of them, and rows enough for all.
    unsigned parts_of_columns() const {
        if (nest_.phases.empty()) return 1;
        const Expr points = extent_of(nest_.loops);
        const Phase& walk = nest_.phases[0];
        if (form_.threads != 0 || !points.is_constant() || points.constant() % kWarp != 0 ||
            has_scratch() || walk.loops.empty() || walk.reductions.empty() || !walk.stores.empty())
            return 1;
        for (const Phase& p : nest_.phases)
            if (&p != &walk && !(p.loops.empty() && p.reductions.empty())) return 1;
        const Expr rows = extent_of(walk.loops);
        if (!rows.is_constant()) return 1;
        unsigned parts = 1;
        while (parts < kMostParts && rows.constant() % (2 * parts) == 0 &&
               rows.constant() / (2 * parts) >= kRowsOfPart &&
               points.constant() * 2 * parts <= kBusy)
            parts *= 2;
        return parts >= kLeastParts ? parts : 1;
    }

    // By instruction, whether it is the same for all elements along the vector. What is added up
    // over rows is not, where neighbouring points are the vector.
    std::vector<bool> alike(const Phase& phase) const {
        std::vector<bool> same(phase.insts.size(), false);
        const auto everywhere = [&](Expr e) {
            const auto stride = index_.lane_stride(e);
            return stride && stride->is(0);
        };
        for (InstId i = 0; i < phase.insts.size(); ++i) {
            const Inst& inst = phase.insts[i];
            if (inst.kind == InstKind::Constant) same[i] = true;
            if (inst.kind == InstKind::Index) same[i] = everywhere(inst.offset);
            if (inst.kind == InstKind::Load)
                same[i] = everywhere(inst.offset) && (inst.mask == kNone || same[inst.mask]);
            if (inst.kind == InstKind::Prim)
                same[i] = std::ranges::all_of(inst.operands, [&](InstId o) { return same[o]; });
        }
        return same;
    }

    // Whether every access of the phase is `lanes` neighbours at an aligned place, or one place,
    // along `var`.
    // `gathers`: but for what is repeated among the points, which lanes may find one by one.
    bool smooth(const Phase& phase, Expr var, unsigned lanes, bool gathers = false) {
        index_.set_vector(var, lanes, lanes);
        const std::vector<bool> same = alike(phase);
        const auto fits = [&](Expr offset) {
            const auto stride = index_.lane_stride(offset);
            if (!stride || !stride->is_constant()) return false;
            if (stride->constant() == 0) return true;
            return stride->constant() == 1 && index_.alignment(offset) % lanes == 0;
        };
        bool all = true, binds = false, indices = false;
        for (const Inst& i : phase.insts) {
            binds = binds || i.kind == InstKind::Bind;
            if (i.kind == InstKind::Load) {
                all = all && (fits(i.offset) || (gathers && is_repeated(i)));
                const auto stride = index_.lane_stride(i.offset);
                indices = indices || (is_integral(i.dtype) && !(stride && stride->is(0)));
            }
            // Conditions and computed indices that change from lane to lane take scalar code, as do
            // those of memory that may be shorter than a vector.
            if (i.mask != kNone) all = all && same[i.mask] && readable(i.buffer) >= lanes;
            if (i.kind == InstKind::Index || i.kind == InstKind::Bind) {
                const auto stride = index_.lane_stride(i.offset);
                all = all && (i.kind == InstKind::Bind || (stride && stride->is_constant()));
            }
        }
        for (const Store& s : phase.stores)
            all = all && s.mask == kNone && s.mode != StoreMode::AtomicAdd && fits(s.offset);
        index_.clear_vector();
        return all && !(binds && indices);
    }

    // Whether a load, under no mask, reads each element for several points.
    bool is_repeated(const Inst& load, std::int64_t times = kRepeated) const {
        const Expr points = extent_of(nest_.loops);
        const KernelBuffer& buffer = kernel_.buffers[static_cast<std::size_t>(load.buffer)];
        return load.mask == kNone && !is_complex(buffer.dtype) && points.is_constant() &&
               buffer.elements.is_constant() &&
               buffer.elements.constant() * times <= points.constant();
    }

    std::int64_t readable(std::int32_t buffer) const {
        const KernelBuffer& b = kernel_.buffers[static_cast<std::size_t>(buffer)];
        return b.scope == BufferScope::Argument ? b.elements.range().lo : 0;
    }

    // Rows of which a thread has so few pieces that what it keeps of them, wider than in memory,
    // need not be counted.
    static bool stays_short(const Phase& p) {
        const Expr n = extent_of(p.loops);
        return n.is_constant() && n.constant() <= kShortKept;
    }

    // Elements of the widest type that neighbours along the row's (or the points') loop have of
    // their own. What all rows read (a bias) comes out of a cache and does not count.
    unsigned most_lanes(bool rows) const {
        unsigned widest = 2;
        for (const Phase& p : nest_.phases) {
            if (rows && p.loops.empty()) continue;
            const Expr var = rows ? p.loops.back().var : nest_.loops.back().var;
            const auto see = [&](std::int32_t buffer, Expr offset) {
                if (!contains(offset, var) || (stays_short(p) && is_scratch(buffer))) return;
                const DType type = kernel_.buffers[static_cast<std::size_t>(buffer)].dtype;
                widest = std::max(widest, static_cast<unsigned>(bytes(type)));
            };
            const auto of_all_rows = [&](Expr offset) {
                return std::ranges::none_of(nest_.loops, [&](const Loop& l) {
                    return !(l.var == var) && contains(offset, l.var);
                });
            };
            const bool several = nest_.loops.size() > (rows ? 0 : 1);
            for (const Inst& i : p.insts)
                if (i.kind == InstKind::Load && !(several && of_all_rows(i.offset)) &&
                    (rows || !is_repeated(i, kOften)))
                    see(i.buffer, i.offset);
            for (const Store& s : p.stores)
                if (s.mode != StoreMode::Sum) see(s.buffer, s.offset);
        }
        return std::min(std::clamp(kVectorBytes / widest, 1u, 8u),
                        form_.lanes != 0 ? form_.lanes : 8u);
    }

    std::int64_t threads_enough(bool columns) const {
        const auto is_block = [](const Phase& p) { return p.insts.size() > kBlockInsts; };
        if (std::ranges::any_of(nest_.phases, is_block)) return columns ? kBusy / 16 : kBusy / 8;
        return columns ? kBusy / 4 : kBusy;
    }

    // Whether a thread's sums fit into registers.
    bool holds_sums(unsigned lanes) const {
        return std::ranges::all_of(nest_.phases, [&](const Phase& p) {
            return p.reductions.size() <= 1 || p.reductions.size() * lanes <= kMostSums;
        });
    }

    void choose_points(GpuMapping& m, std::int64_t enough) {
        const Expr points = extent_of(nest_.loops);
        if (nest_.loops.empty() || !points.is_constant()) return;
        for (const Phase& p : nest_.phases)
            if (!p.loops.empty() && has_scratch()) return;
        const Loop& last = nest_.loops.back();
        for (unsigned lanes = most_lanes(false); lanes > 1; lanes /= 2) {
            if (!last.extent.is_constant()) continue;
            const bool ragged = last.extent.constant() % lanes != 0;
            if (ragged && !may_end_anywhere()) continue;
            if (form_.lanes == 0 && points.constant() / lanes < enough) continue;
            if (!holds_sums(lanes)) continue;
            const bool gathers = may_gather();
            const bool all = std::ranges::all_of(
                nest_.phases, [&](const Phase& p) { return smooth(p, last.var, lanes, gathers); });
            if (!all) continue;
            m.lanes = lanes;
            m.ragged = ragged;
            if (busy_threads(last.var)) m.threads = kThreadsOfBusy;
            return;
        }
    }

    bool may_gather() const {
        if (nest_.phases.size() != 1 || !nest_.phases[0].loops.empty()) return false;
        const auto loads = std::ranges::count_if(
            nest_.phases[0].insts, [](const Inst& i) { return i.kind == InstKind::Load; });
        return loads <= kMostGathering;
    }

    // One loop over all elements, of whatever number.
    bool may_end_anywhere() const {
        return nest_.loops.size() == 1 && nest_.phases.size() == 1 &&
               nest_.phases[0].loops.empty() && nest_.phases[0].insts.size() <= kBlockInsts;
    }

    bool busy_threads(Expr var) const {
        return std::ranges::any_of(nest_.phases, [&](const Phase& p) {
            const auto loads = std::ranges::count_if(p.insts, [&](const Inst& i) {
                return i.kind == InstKind::Load && contains(i.offset, var);
            });
            return !p.loops.empty() || loads >= kManyLoads;
        });
    }

    // Elements that are taken one by one.
    void choose_copies(GpuMapping& m) const {
        if (nest_.phases.size() != 1 || !nest_.phases[0].loops.empty() || has_scratch()) return;
        for (const Inst& i : nest_.phases[0].insts)
            if (i.kind == InstKind::Bind || (i.mask != kNone && i.kind != InstKind::Load)) return;
        for (const Store& s : nest_.phases[0].stores)
            if (s.mask != kNone || s.mode != StoreMode::Write) return;
        const Expr points = extent_of(nest_.loops);
        if (!points.is_constant()) return;
        for (unsigned n : {8u, 4u, 2u}) {
            const bool wanted = form_.each != 0 ? n == form_.each : points.constant() / n >= kBusy;
            if (points.constant() % (m.threads * n) == 0 && wanted) {
                m.copies = n;
                return;
            }
        }
    }

    void choose_row(GpuMapping& m) {
        lay_row(m);
        if (m.single) m.held = m.each * bytes_of_piece(m.lanes);
        if (!m.single || !(has_run() || m.each > 1)) return;
        if (m.as_stored && !has_run()) {
            m.resident = static_cast<unsigned>(rows_at_once(m.threads, m.each, m.lanes));
        } else {
            const unsigned threads = !has_run()                           ? kThreadsOfPieces
                                     : m.each * m.lanes > kElementsOfRuns ? kThreadsOfWideRuns
                                                                          : kThreadsOfRuns;
            m.resident = threads / m.threads;
        }
        m.resident = std::max(1u, m.resident);
    }

    void lay_row(GpuMapping& m) {
        m.threads = m.group = form_.threads != 0 ? form_.threads : 256;
        // Only rows of one length, walked by one loop, are cut into pieces.
        std::int64_t row = 0;
        bool equal = true;
        for (const Phase& p : nest_.phases) {
            if (p.loops.empty()) continue;
            const Expr n = extent_of(p.loops);
            if (!n.is_constant() || p.loops.size() != 1 || (row != 0 && n.constant() != row))
                equal = false;
            else
                row = n.constant();
        }
        if (!equal) return;
        m.lanes = row_lanes(row);
        const std::int64_t pieces = row / m.lanes;
        const std::int64_t own = bytes_of_piece(m.lanes);
        std::int64_t few =
            form_.each != 0 ? form_.each : std::clamp<std::int64_t>(kRowBytes / own, 1, 8);
        // Long rows (the logits of many classes) are read once if a block's registers hold one.
        const bool is_long = pieces > kMostThreads;
        if (is_long && form_.each == 0) few = pieces_of_long(pieces, few, m.lanes);
        if (is_long && (has_run() || m.lanes == 1 || whole(pieces, few) > kMostThreads)) {
            m.threads = m.group = form_.threads != 0 ? form_.threads : 512;
            return;
        }
        m.single = true;
        m.pieces = pieces;
        if (is_long) {
            m.as_stored = true;
            m.each = static_cast<unsigned>(few);
            m.threads = m.group = threads_for(pieces, few);
            return;
        }
        if (!has_run() && form_.threads == 0 && pieces < 2 * kWarp && pieces <= kWarp * few) {
            share_warp(m, pieces, few);
            return;
        }
        // A warp alone waits for nobody; several pieces of a thread are asked for at once.
        const std::int64_t warp = whole(pieces, kWarp);
        if (warp <= (has_run() ? 1 : few)) {
            m.group = kWarp;
            m.threads = form_.threads != 0 ? form_.threads : 4 * kWarp;
            m.each = static_cast<unsigned>(warp);
            return;
        }
        if (has_run()) {
            // Fewer warps exchange what they have added up with fewer steps.
            m.each = pieces > kWideRuns && reduces() ? 2 : 1;
            m.as_stored = m.each > 1;
        } else {
            m.each = static_cast<unsigned>(
                form_.each != 0 ? few
                                : std::clamp<std::int64_t>(whole(pieces, 4 * kWarp), 1,
                                                           std::min<std::int64_t>(few, 4)));
        }
        m.threads = m.group = threads_for(pieces, m.each);
    }

    // As many lanes of a warp as leave few of them idle, fewer where that is the same: what they
    // exchange takes fewer steps. Rows of few rows in all are spread over more threads.
    void share_warp(GpuMapping& m, std::int64_t pieces, std::int64_t few) const {
        const Expr rows = extent_of(nest_.loops);
        const std::int64_t of_piece = bytes_of_element() * m.lanes;
        double least = 0;
        m.threads = 4 * kWarp;
        m.group = kWarp;
        for (unsigned group = kWarp; group > 1; group /= 2) {
            const std::int64_t each = whole(pieces, group);
            if (each > few || (group < kWarp && group * of_piece < kSegment)) continue;
            if (group < kWarp && rows.is_constant() && rows.constant() * group < kBusy) continue;
            const double cost =
                static_cast<double>(each * group) * (1 + kCostOfStep * std::countr_zero(group));
            if (least != 0 && cost >= least) continue;
            least = cost;
            m.group = group;
        }
        m.each = static_cast<unsigned>(whole(pieces, m.group));
    }

    // Of the widest type that a row has of its own.
    std::int64_t bytes_of_element() const { return std::max<std::int64_t>(1, bytes_of_piece(1)); }

    static std::int64_t whole(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }
    static unsigned threads_for(std::int64_t pieces, std::int64_t each) {
        return static_cast<unsigned>(whole(whole(pieces, each), kWarp) * kWarp);
    }

    bool reduces() const {
        return std::ranges::any_of(
            nest_.phases, [](const Phase& p) { return !p.loops.empty() && !p.reductions.empty(); });
    }

    // Sums widen what maxima compare as it lies in memory.
    std::int64_t working_registers() const {
        const auto sums = [](const Phase& p) {
            return std::ranges::any_of(p.reductions,
                                       [](const Reduction& r) { return r.op == ReduceOp::Sum; });
        };
        return sums(nest_.phases[0]) ? kSummingRegisters : kWorkingRegisters;
    }

    // Long rows that a multiprocessor's registers hold at once.
    std::int64_t rows_at_once(unsigned threads, std::int64_t each, unsigned lanes) const {
        return kRegisters / (threads * (each * bytes_of_piece(lanes) / 4 + working_registers()));
    }
    // Twice as many pieces a thread where more rows fit then: fewer threads need fewer registers
    // to work with.
    std::int64_t pieces_of_long(std::int64_t pieces, std::int64_t few, unsigned lanes) const {
        const auto rows = [&](std::int64_t each) {
            return rows_at_once(threads_for(pieces, each), each, lanes);
        };
        return rows(2 * few) > rows(few) ? 2 * few : few;
    }

    // Bytes of a piece of all rows the phases read: of what each row has of its own. What all rows
    // read (a norm's weights) is not held from phase to phase.
    std::int64_t bytes_of_piece(unsigned lanes) const {
        std::vector<std::int32_t> seen;
        std::int64_t of_piece = 0;
        for (const Phase& p : nest_.phases) {
            if (p.loops.empty()) continue;
            const auto own = [&](const Inst& load) {
                const auto buffer = static_cast<std::size_t>(load.buffer);
                return contains(load.offset, p.loops.back().var) &&
                       (kernel_.buffers[buffer].scope == BufferScope::Scratch ||
                        std::ranges::any_of(nest_.loops, [&](const Loop& l) {
                            return contains(load.offset, l.var);
                        }));
            };
            for (const Inst& i : p.insts)
                if (i.kind == InstKind::Load && own(i) &&
                    std::ranges::find(seen, i.buffer) == seen.end()) {
                    seen.push_back(i.buffer);
                    const DType type = kernel_.buffers[static_cast<std::size_t>(i.buffer)].dtype;
                    of_piece += static_cast<std::int64_t>(lanes) * bytes(type);
                }
        }
        return std::max<std::int64_t>(of_piece, 1);
    }

    unsigned row_lanes(std::int64_t row) {
        const auto fits = [&](unsigned lanes) {
            if (row % lanes != 0) return false;
            return std::ranges::all_of(nest_.phases, [&](const Phase& p) {
                return p.loops.empty() || smooth(p, p.loops.back().var, lanes);
            });
        };
        const unsigned most = most_lanes(true);
        for (unsigned lanes = most; lanes > 1; lanes /= 2)
            if ((row / lanes >= kWarp || !(has_run() || form_.threads != 0)) && fits(lanes)) {
                // Two accesses instead of one, if that keeps the row in registers.
                if (lanes == 4 && row / lanes > kMostThreads && row / 8 <= kMostThreads && fits(8))
                    return 8;
                return lanes;
            }
        return 1;
    }

    const Kernel& kernel_;
    const Nest& nest_;
    IndexEmitter& index_;
    const NestForm form_;
};

}  // namespace

Expr extent_of(const std::vector<Loop>& loops) {
    Expr n = 1;
    for (const Loop& l : loops) n = n * l.extent;
    return n;
}

GpuMapping map_to_gpu(const Kernel& kernel, const Nest& nest, IndexEmitter& index,
                      const NestForm& form) {
    return Mapper(kernel, nest, index, form).run();
}

}  // namespace ingot::codegen
