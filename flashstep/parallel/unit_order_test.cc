#include "flashstep/parallel/unit_order.h"

#include <gtest/gtest.h>

namespace flashstep {
namespace {

TEST(UnitOrder, KnowsWhatComesNext) {
  UnitOrder order;
  order.begin();
  EXPECT_FALSE(order.next_in_forward()) << "nothing was called before";
  for (const size_t unit : {2, 0, 1}) {
    order.call(unit);
    EXPECT_FALSE(order.next_in_forward());
  }
  EXPECT_EQ(order.next_in_backward(std::nullopt), 1) << "the root's backward comes first";
  EXPECT_EQ(order.next_in_backward(1), 0);
  EXPECT_EQ(order.next_in_backward(0), 2);
  EXPECT_FALSE(order.next_in_backward(2));
  EXPECT_FALSE(order.next_in_backward(7)) << "was not called";

  order.begin();
  EXPECT_EQ(order.next_in_forward(), 2);
  order.call(2);
  EXPECT_EQ(order.next_in_forward(), 0);
  order.call(1);
  EXPECT_FALSE(order.next_in_forward()) << "another forward than the last one";
  order.call(1);
  order.call(1);
  EXPECT_FALSE(order.next_in_forward()) << "a longer one";
  order.forget();
  EXPECT_FALSE(order.next_in_backward(std::nullopt));
}

}  // namespace
}  // namespace flashstep
