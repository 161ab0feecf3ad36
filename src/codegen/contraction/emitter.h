// Writes the functions of one contraction kernel. Internal to this folder: contraction.cpp has the
// driver, operands.cpp what brings A and B to the micro-kernels, matrix_driver.cpp the driver of
// products on matrix units, epilogue.cpp what happens to finished tiles. See contraction.h.
#pragma once
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/compiled.h"
#include "codegen/contraction/decisions.h"
#include "codegen/contraction/micro_kernel.h"
#include "codegen/contraction/point.h"
#include "codegen/llvm/target.h"
#include "schedule/nest.h"

namespace ingot::codegen {

class ContractionEmitter {
  public:
    ContractionEmitter(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                       std::string prefix)
        : module_(module),
          kernel_(kernel),
          c_(*kernel.contraction),
          target_(target),
          prefix_(std::move(prefix)),
          d_(decide(kernel, target)),
          b_(module.getContext()),
          element_(d_.dtype == DType::F64 ? b_.getDoubleTy() : b_.getFloatTy()) {}

    KernelCode emit();

  private:
    // ---- small things ----
    llvm::Value* i64(std::int64_t v) { return b_.getInt64(static_cast<std::uint64_t>(v)); }
    llvm::Value* expr(Expr e) { return emit_expr(b_, e, symbols_); }
    llvm::Value* at(llvm::Type* type, llvm::Value* base, llvm::Value* index) {
        return b_.CreateGEP(type, base, index);
    }
    llvm::Value* bytes_at(llvm::Value* base, Expr offset) {
        return at(b_.getInt8Ty(), base, expr(offset));
    }
    TileShape shape(int rows, int vectors) const {
        const bool interleaved = d_.plan.b.form == OperandForm::Runs || d_.pairs_once;
        return {element_,
                d_.plan.tile.lanes,
                vectors,
                rows,
                !d_.plan.pairs ? DotKind::Elements
                : interleaved  ? DotKind::InterleavedPairs
                               : DotKind::Pairs,
                sum_block(),
                looks_ahead()};
    }
    /// How many k a chain of sums may have. Pairs are added exactly enough: they are rounded to
    /// bf16.
    std::uint64_t sum_block() const {
        const Expr m = d_.plan.m;
        const bool few = !d_.plan.pairs && m.is_constant() && m.constant() <= kFewRows;
        return few ? kFewRowsSumBlock : kSumBlock;
    }
    /// Panels that were packed ahead lie one behind the other, mostly outside the caches: while one
    /// is used, the next is fetched.
    bool looks_ahead() const { return d_.plan.b.form == OperandForm::Panels; }
    /// An image is read where it lies, and the block's first panel finds it outside the caches.
    bool fetches_windows() const {
        return d_.plan.a.form == OperandForm::Runs && !d_.plan.a.segments.is(1) && !d_.pack_a;
    }
    /// Of the operands in memory.
    llvm::Type* operand_type() { return d_.plan.pairs ? b_.getInt16Ty() : element_; }
    llvm::Value* units(Expr along_k) { return expr(d_.units(along_k)); }
    int columns() const { return d_.plan.tile.columns(); }
    llvm::Value* round_up(llvm::Value* x, std::int64_t unit) {
        return b_.CreateMul(b_.CreateUDiv(b_.CreateAdd(x, i64(unit - 1)), i64(unit)), i64(unit));
    }
    llvm::Value* select_min(llvm::Value* x, llvm::Value* y) {
        return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, x, y);
    }
    llvm::Value* pointer(std::int32_t buffer) const {
        return buffers_.list[static_cast<std::size_t>(buffer)].pointer;
    }
    void if_then(llvm::Value* condition, const std::function<void()>& body);

    // ---- functions ----
    llvm::Function* begin_function(const std::string& name, llvm::ArrayRef<llvm::Type*> extra,
                                   bool is_public);
    /// Internal functions: (buffers, sizes, error, batch, ...).
    llvm::Function* table_function(const char* name, const OperandPlan& operand,
                                   const std::vector<Inst>& insts, const std::vector<Loop>& loops,
                                   Expr limit);
    /// (buffers, sizes, error, batch, first k, count, table)
    llvm::Function* point_table_function();
    llvm::Function* image_table_function();
    struct ComputedPoint {
        llvm::Value* mask;  // null: all
        Expr along;
        int width;  // in lanes
        llvm::Value* place;
        bool keep_others;  // memory outside the mask stays as it is
    };
    void compute_at(const std::vector<Inst>& insts, const ComputedPoint& at_point);
    llvm::Value* lane_mask(llvm::Value* left);
    llvm::Function* compute_a();
    llvm::Function* compute_b();
    llvm::Function* epilogue_function();
    void epilogue_rows(llvm::Function* f, bool masked);
    llvm::Function* main_function();

    // ---- the parts of the main function ----
    using TileBody = std::function<void(int height, llvm::Value* row, llvm::Value* local)>;
    void for_tiles(llvm::Value* start, llvm::Value* end, const TileBody& body);
    void compute_rows(llvm::Value* batch, llvm::Value* row, int height, llvm::Value* k);
    /// Rows of a work item; of an image, points from the first result on.
    struct RowBlock {
        llvm::Value *start, *end;
        llvm::Value *first_result = nullptr, *image_rows = nullptr;  // of an image
    };
    llvm::Value* first_row(llvm::Value* block);
    void prepare_block(llvm::Value* batch, llvm::Value* start, llvm::Value* end);
    void find_image_steps();
    RowBlock image_block(llvm::Value* block);
    void prepare_image(const RowBlock& block);
    struct PanelValue {
        llvm::Value* address;
        llvm::Value* distance;
        llvm::Value* packed = nullptr;  // where it lies packed, if it does
    };
    PanelValue panel(llvm::Value* batch, llvm::Value* index, llvm::Value* first_column,
                     llvm::Value* count, llvm::Value* out);
    llvm::Value* first_of_b(llvm::Value* batch);
    PanelValue columns_in_place(llvm::Value* batch, llvm::Value* first_column);
    void tiles(llvm::Value* batch, llvm::Value* start, llvm::Value* end, llvm::Value* panel_index,
               llvm::Value* is_first_panel);
    void fetch_windows(llvm::Value* batch_shift, llvm::Value* local);
    // By minimal filtering; blocks are rows of tiles.
    TileShape winograd_shape() const;
    llvm::Function* tile_points_function();
    llvm::Value* first_of_tiles(llvm::Value* tile_row);
    void find_tiles();
    RowBlock tile_rows_of(llvm::Value* block);
    void prepare_tiles(const RowBlock& block);
    llvm::Value* rough_flag(const RowBlock& block, llvm::Value* row);
    void filter_tiles(llvm::Value* batch, const RowBlock& block, llvm::Value* panel_index);
    void plain_row(llvm::Value* batch, llvm::Value* first, llvm::Value* right, llvm::Value* out);
    // Weights' gradients by minimal filtering.
    TileShape gradient_shape() const;
    struct TableShape {
        const OperandPlan* operand;
        const std::vector<Loop>* channels;
        std::int64_t rows, points;   // of the table
        std::int64_t height, width;  // of what lies in memory
    };
    void bind_point(llvm::Value* image, llvm::Value* down, llvm::Value* across);
    llvm::Function* gradient_table(const char* name, const TableShape& table);
    void gradient_tables();
    void form_tiles(const RowBlock& block, llvm::Value* first, bool points);
    void multiply_planes(const RowBlock& block, llvm::Value* add);
    void plain_taps(llvm::Value* first_row, llvm::Value* first_column, llvm::Value* out);
    void gradient_item(llvm::Value* group, llvm::Value* rows, llvm::Value* is_fresh);
    /// The taps of a tile of which some row lies inside the image.
    struct Taps {
        llvm::Value *first, *count;
    };
    Taps taps_inside(llvm::Value* table, int height);
    llvm::Value* extremes_of_rows(llvm::Value* local);
    llvm::Value* extremes_of_panel(llvm::Value* n_th);
    void forget(llvm::Value* extremes);
    void matrix_rows(llvm::Value* batch, int height, llvm::Value* row, llvm::Value* local);
    void matrix_tiles(llvm::Value* batch, const RowBlock& block, llvm::Value* group);
    /// Panels of B that pass the same rows of A on matrix units.
    struct PanelGroup {
        llvm::Value *batch, *start, *end;  // rows
        llvm::Value* first_result;         // of an image
        llvm::Value *first, *panels;       // of B
        llvm::Value* block_rows;           // whole half tiles
        llvm::Value* ordered;              // where panels are brought into order
    };
    /// A part of k of one panel, from k `from` on.
    struct PanelPart {
        llvm::Value *n_th, *from, *length, *steps;
        llvm::Value *first_column, *count;
        PanelValue panel;  // of all k, where it lies in order
    };
    /// What kernels fetch while they work: see matrix_kernel.
    struct Ahead {
        llvm::Value *next, *count, *distance, *step_distance;
        llvm::Value* tile_distance;  // between what two tiles fetch
    };
    llvm::Value* column_of(const PanelGroup& group, llvm::Value* n_th);
    llvm::Value* columns_from(llvm::Value* column);
    llvm::Value* table_of(llvm::Value* n_th);
    void find_points(const PanelGroup& group, llvm::Value* from);
    llvm::Value* column_among_neighbours(llvm::Value* batch, llvm::Value* first_column);
    void order_panels(const PanelGroup& group);
    PanelValue ordered_panel(const PanelGroup& group, llvm::Value* n_th);
    Ahead fetched_ahead(const PanelGroup& group, const PanelPart& part);
    llvm::Value* units_order(const PanelGroup& group, const PanelPart& part);
    /// A finished tile: its sums, how many rows count, A's parts of it, where it begins in the
    /// block.
    struct Tile {
        llvm::Value *sums, *rows, *a, *local;
        int height;
    };
    void repair(const PanelGroup& group, const PanelPart& part, const Tile& tile);
    llvm::Value* image_tile(llvm::Value* local, int height);
    void image_epilogue(const PanelGroup& group, const PanelPart& part, const Tile& tile);
    void part_of_panel(const PanelGroup& group, llvm::Value* from, llvm::Value* n_th);
    void configure_tiles();
    void call(llvm::Function* f, std::vector<llvm::Value*> extra);

    llvm::Module& module_;
    const Kernel& kernel_;
    const Contraction& c_;
    const TargetInfo& target_;
    std::string prefix_;
    Decisions d_;
    llvm::IRBuilder<> b_;
    llvm::Type* element_;

    // Of the function being written:
    PointEmitter::Buffers buffers_;
    SymbolValues symbols_;
    llvm::Value* buffers_argument_ = nullptr;
    llvm::Value* sizes_argument_ = nullptr;
    llvm::Value* error_argument_ = nullptr;
    llvm::Value* scratch_ = nullptr;

    llvm::Function* fill_a_ = nullptr;
    llvm::Function* fill_b_ = nullptr;
    llvm::Function* fill_points_ = nullptr;
    llvm::Function* epilogue_ = nullptr;
};

}  // namespace ingot::codegen
