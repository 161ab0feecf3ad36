// Forms of GPU kernels as text and on disk, and the search for the best one: all without a GPU.
#include "runtime/form_search.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "runtime/form_store.h"

namespace ingot::runtime {
namespace {

using codegen::GpuForm;
using codegen::LibraryForm;
using codegen::NestForm;
using codegen::ProductTile;

TEST(GpuForms, AreReadAsTheyAreWritten) {
    std::vector<GpuForm> forms = {NestForm{}, NestForm{128, 0, 4}, NestForm{1024, 8, 1},
                                  LibraryForm{}};
    forms.insert(forms.end(), codegen::kProductTiles.begin(), codegen::kProductTiles.end());
    for (const GpuForm& form : forms) {
        const auto read = codegen::parse_gpu_form(codegen::to_string(form));
        ASSERT_TRUE(read) << codegen::to_string(form);
        EXPECT_EQ(*read, form);
    }
}

TEST(GpuForms, WhatNobodyWroteIsNone) {
    for (const char* text :
         {"", "nest", "nest 128 1", "nest 128 1 1 1", "nest 100 0 0", "nest 2048 0 0",
          "nest 128 3 0", "nest 0 16 0", "nest 0 0 16", "nest -32 0 0", "library 1", "product",
          "product 1 64 6", "product 9 64 6 2", "product 1 64 6 2 2", "tile 1 64 6 2"})
        EXPECT_FALSE(codegen::parse_gpu_form(text)) << text;
}

class FormStoreTest : public testing::Test {
  protected:
    FormStoreTest()
        : folder_(std::filesystem::temp_directory_path() /
                  ("ingot-forms-" + std::to_string(::getpid()))) {}
    ~FormStoreTest() override { std::filesystem::remove_all(folder_); }

    DiskCache cache() const { return DiskCache({folder_.string()}); }
    std::vector<std::filesystem::path> entries() const {
        std::vector<std::filesystem::path> found;
        for (const auto& e : std::filesystem::recursive_directory_iterator(folder_))
            if (e.path().extension() == ".pack") found.push_back(e.path());
        return found;
    }

    std::filesystem::path folder_;
};

TEST_F(FormStoreTest, AnotherProcessFindsWhatOneHasFound) {
    DiskCache first = cache(), second = cache();
    FormStore one(first, "gpu");
    EXPECT_FALSE(one.find("kernel"));
    one.put("kernel", NestForm{256, 2, 0});
    one.put("product", codegen::kProductTiles[3]);
    EXPECT_EQ(one.find("kernel"), GpuForm(NestForm{256, 2, 0}));
    FormStore other(second, "gpu");
    EXPECT_EQ(other.find("kernel"), GpuForm(NestForm{256, 2, 0}));
    EXPECT_EQ(other.find("product"), GpuForm(codegen::kProductTiles[3]));
    FormStore elsewhere(second, "another gpu");
    EXPECT_FALSE(elsewhere.find("kernel"));
}

TEST_F(FormStoreTest, ADamagedEntryIsNoneAndIsReplaced) {
    {
        DiskCache disk = cache();
        FormStore(disk, "gpu").put("kernel", LibraryForm{});
    }
    ASSERT_EQ(entries().size(), 1U);
    const auto path = entries()[0];
    // A byte of the form itself: the checksum finds it.
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('!');
    file.close();
    DiskCache disk = cache();
    FormStore store(disk, "gpu");
    EXPECT_FALSE(store.find("kernel"));
    EXPECT_EQ(disk.stats().damaged, 1U);
    store.put("kernel", NestForm{64, 0, 0});
    DiskCache again = cache();
    EXPECT_EQ(FormStore(again, "gpu").find("kernel"), GpuForm(NestForm{64, 0, 0}));
}

TEST_F(FormStoreTest, AWholeEntryOfAnUnknownFormIsNone) {
    DiskCache disk = cache();
    FormStore(disk, "gpu").put("kernel", ProductTile{7, 7, 7, 7});  // of another version
    DiskCache again = cache();
    EXPECT_FALSE(FormStore(again, "gpu").find("kernel"));
    EXPECT_TRUE(entries().empty());
}

/// Not by comparing variants: a compiler with sanitizers takes their other types for read then.
bool is_nest(const GpuForm& form, const NestForm& wanted) {
    const NestForm* nest = std::get_if<NestForm>(&form);
    return nest != nullptr && *nest == wanted;
}

/// A world in which each form takes what a table says, and trying one takes a second.
class MadeUpTrials final : public FormTrials {
  public:
    using Table = std::function<double(const GpuForm&)>;
    MadeUpTrials(Table table, double seconds) : table_(std::move(table)), left_(seconds) {}

    bool over() override { return left_ <= 0; }
    std::vector<double> time(std::span<const GpuForm> forms) override {
        std::vector<double> times;
        for (const GpuForm& form : forms) {
            if (over()) {
                times.push_back(kImpossible);
                continue;
            }
            left_ -= 1;
            ++tried;
            times.push_back(table_(form));
        }
        return times;
    }
    int tried = 0;

  private:
    Table table_;
    double left_;
};

// The more threads the better, and two pieces.
double of_nest(const GpuForm& form) {
    const NestForm& nest = std::get<NestForm>(form);
    return 100 - (nest.threads == 512 ? 20 : 0) - (nest.each == 2 ? 30 : nest.each == 8 ? -50 : 0);
}

TEST(FormSearch, FindsTheBestOfEachProperty) {
    MadeUpTrials trials(of_nest, 1000);
    const auto answer = search_nest(trials);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->form, GpuForm(NestForm{512, 2, 0}));
    EXPECT_EQ(answer->model, 100);
    EXPECT_EQ(answer->best, 50);
    EXPECT_GT(answer->tried, 10);
}

TEST(FormSearch, KeepsTheModelsFormUnlessAnotherIsClearlyBetter) {
    MadeUpTrials trials([](const GpuForm& f) { return is_nest(f, {}) ? 100.0 : 98.0; }, 1000);
    const auto answer = search_nest(trials);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->form, GpuForm(NestForm{}));
}

TEST(FormSearch, AWinnerHasToWinTwice) {
    // One lucky measurement: the form takes half as long the first time it is looked at.
    int looked = 0;
    MadeUpTrials trials(
        [&](const GpuForm& f) { return is_nest(f, {0, 0, 4}) && looked++ == 0 ? 50.0 : 100.0; },
        1000);
    const auto answer = search_nest(trials);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->form, GpuForm(NestForm{}));
}

TEST(FormSearch, FormsThatCannotRunNeverWin) {
    MadeUpTrials trials(
        [](const GpuForm& f) { return is_nest(f, {}) ? 100.0 : FormTrials::kImpossible; }, 1000);
    EXPECT_EQ(search_nest(trials)->form, GpuForm(NestForm{}));
    MadeUpTrials nothing([](const GpuForm&) { return FormTrials::kImpossible; }, 1000);
    EXPECT_FALSE(search_nest(nothing));
}

TEST(FormSearch, EndsWithItsTimeAndSaysNothingThen) {
    for (double seconds : {0.0, 1.0, 3.0, 8.0, 14.0}) {
        MadeUpTrials trials(of_nest, seconds);
        EXPECT_FALSE(search_nest(trials)) << seconds;
        EXPECT_LE(trials.tried, seconds);
        MadeUpTrials products([](const GpuForm&) { return 1.0; }, std::min(seconds, 3.0));
        const std::vector<GpuForm> rivals = {LibraryForm{}, codegen::kProductTiles[0],
                                             codegen::kProductTiles[1]};
        EXPECT_FALSE(search_product(products, rivals)) << seconds;
    }
}

TEST(FormSearch, AProductIsTheModelsOrTheBestRival) {
    const std::vector<GpuForm> rivals = {LibraryForm{}, codegen::kProductTiles[0],
                                         codegen::kProductTiles[1]};
    std::map<std::string, double> times = {{codegen::to_string(rivals[0]), 20},
                                           {codegen::to_string(rivals[1]), 21},
                                           {codegen::to_string(rivals[2]), 15}};
    const auto of = [&](const GpuForm& form) { return times.at(codegen::to_string(form)); };
    MadeUpTrials first(of, 100);
    EXPECT_EQ(search_product(first, rivals)->form, rivals[2]);
    times[codegen::to_string(rivals[2])] = 30;
    MadeUpTrials second(of, 100);
    EXPECT_EQ(search_product(second, rivals)->form, rivals[0]);
    EXPECT_FALSE(search_product(second, {}));
}

}  // namespace
}  // namespace ingot::runtime
