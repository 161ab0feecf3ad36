// A counted loop in LLVM IR, for code that writes loops by hand.
#pragma once
#include <llvm/IR/IRBuilder.h>

#include <initializer_list>
#include <string_view>
#include <vector>

namespace ingot::codegen {

/// for (i = begin; i < end; i += step) body(i, carried): values that go round the loop are handed
/// to the body, which returns their next ones; the loop's result is their last ones. The builder
/// must stand at the end of a block and stands behind the loop afterwards. `body` may add blocks.
template <typename Body>
std::vector<llvm::Value*> emit_loop(llvm::IRBuilder<>& b, std::string_view name, llvm::Value* begin,
                                    llvm::Value* end, llvm::Value* step,
                                    std::vector<llvm::Value*> carried, Body&& body) {
    llvm::Function* function = b.GetInsertBlock()->getParent();
    llvm::LLVMContext& context = b.getContext();
    llvm::BasicBlock* before = b.GetInsertBlock();
    const llvm::StringRef label(name.data(), name.size());
    llvm::BasicBlock* loop = llvm::BasicBlock::Create(context, label, function);
    llvm::BasicBlock* after = llvm::BasicBlock::Create(context, label + "_end", function);
    b.CreateCondBr(b.CreateICmpSLT(begin, end), loop, after);

    b.SetInsertPoint(loop);
    llvm::PHINode* i = b.CreatePHI(begin->getType(), 2, label);
    i->addIncoming(begin, before);
    std::vector<llvm::Value*> current;
    for (llvm::Value* v : carried) {
        llvm::PHINode* phi = b.CreatePHI(v->getType(), 2);
        phi->addIncoming(v, before);
        current.push_back(phi);
    }
    const std::vector<llvm::Value*> next = body(i, current);
    llvm::Value* i_next = b.CreateAdd(i, step, "", true, true);
    llvm::BasicBlock* latch = b.GetInsertBlock();
    i->addIncoming(i_next, latch);
    for (std::size_t n = 0; n < current.size(); ++n)
        llvm::cast<llvm::PHINode>(current[n])->addIncoming(next[n], latch);
    b.CreateCondBr(b.CreateICmpSLT(i_next, end), loop, after);

    b.SetInsertPoint(after);
    std::vector<llvm::Value*> result;
    for (std::size_t n = 0; n < carried.size(); ++n) {
        llvm::PHINode* phi = b.CreatePHI(carried[n]->getType(), 2);
        phi->addIncoming(carried[n], before);
        phi->addIncoming(next[n], latch);
        result.push_back(phi);
    }
    return result;
}

/// The same with step 1 and nothing carried.
template <typename Body>
void emit_loop(llvm::IRBuilder<>& b, std::string_view name, llvm::Value* begin, llvm::Value* end,
               Body&& body) {
    emit_loop(b, name, begin, end, llvm::ConstantInt::get(begin->getType(), 1), {},
              [&](llvm::Value* i, const std::vector<llvm::Value*>&) {
                  body(i);
                  return std::vector<llvm::Value*>{};
              });
}

}  // namespace ingot::codegen
