// Work on a thread that nobody waits for: its ends, and what stops it.
#include "runtime/background.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <stdexcept>
#include <string>

#include "ir/parse.h"
#include "runtime/driver.h"

namespace ingot::runtime {
namespace {

using State = Background::Task::State;
using Work = std::function<void(const Background::StopCheck&)>;

std::shared_ptr<Background::Task> started(Background& background, Work work) {
    auto task = std::make_shared<Background::Task>(std::move(work));
    background.start(task);
    return task;
}

/// Runs until it is told to stop.
void forever(const Background::StopCheck& stop) {
    while (!stop()) std::this_thread::yield();
}

TEST(Background, RunsTasksInTurnOnOneOtherThread) {
    Background background;
    std::string order;
    std::thread::id first, second;
    const auto a = started(background, [&](const auto&) {
        order += 'a';
        first = std::this_thread::get_id();
    });
    const auto b = started(background, [&](const auto&) {
        order += 'b';
        second = std::this_thread::get_id();
    });
    background.wait();
    EXPECT_EQ(order, "ab");
    EXPECT_NE(first, std::this_thread::get_id());
    EXPECT_NE(second, std::this_thread::get_id());
    EXPECT_EQ(a->state(), State::Done);
    EXPECT_EQ(b->state(), State::Done);
    const auto later = started(background, [&](const auto&) { order += 'c'; });
    background.wait();
    EXPECT_EQ(order, "abc");
    EXPECT_EQ(later->state(), State::Done);
}

TEST(Background, AFailureIsTheTasksAlone) {
    Background background;
    const auto bad = started(background, [](const auto&) { throw std::runtime_error("no"); });
    const auto good = started(background, [](const auto&) {});
    background.wait();
    EXPECT_EQ(bad->state(), State::Failed);
    EXPECT_EQ(good->state(), State::Done);
}

TEST(Background, HoldsWhatIsUnderWayAndWhatWaits) {
    Background background;
    const auto endless = started(background, forever);
    bool ran = false;
    const auto waiting = started(background, [&](const auto&) { ran = true; });
    background.hold();
    EXPECT_EQ(endless->state(), State::Stopped);
    EXPECT_EQ(waiting->state(), State::Stopped);
    EXPECT_EQ(started(background, [&](const auto&) { ran = true; })->state(), State::Stopped);
    EXPECT_FALSE(ran);
    background.release();
    const auto again = started(background, [&](const auto&) { ran = true; });
    background.wait();
    EXPECT_TRUE(ran);
    EXPECT_EQ(again->state(), State::Done);
}

TEST(Background, GivesUpWhatNobodyWants) {
    Background background;
    const auto endless = started(background, forever);
    endless->give_up();
    background.wait();
    EXPECT_EQ(endless->state(), State::Stopped);
}

TEST(Background, EndsWithItsOwner) {
    std::shared_ptr<Background::Task> endless;
    {
        Background background;
        endless = started(background, forever);
    }
    EXPECT_EQ(endless->state(), State::Stopped);
}

TEST(Background, LeavesSignalsToOthers) {
    Background background;
    bool blocked = false;
    const auto task = started(background, [&](const auto&) {
        sigset_t now;
        pthread_sigmask(SIG_SETMASK, nullptr, &now);
        blocked = sigismember(&now, SIGINT) == 1;
    });
    background.wait();
    EXPECT_TRUE(blocked);
    sigset_t here;
    pthread_sigmask(SIG_SETMASK, nullptr, &here);
    EXPECT_EQ(sigismember(&here, SIGINT), 0);
}

TEST(Compiler, CompilesInTheBackground) {
    CompilerOptions options;
    options.cache = false;
    const Compiler compiler(options);
    const Graph graph = parse_graph("graph(%x: f32[8]) {\n  %y = exp(%x)\n  return %y\n}\n");
    const auto pending = compiler.compile_later(graph, {});
    compiler.background().wait();
    ASSERT_EQ(pending->state(), PendingProgram::State::Done);
    EXPECT_EQ(pending->program()->plan().kernels.size(), 1u);
    compiler.background().hold();
    const auto held = compiler.compile_later(graph, {});
    EXPECT_EQ(held->state(), PendingProgram::State::Stopped);
}

}  // namespace
}  // namespace ingot::runtime
