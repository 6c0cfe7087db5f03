// The rules of an optimizer: which numbers make sense, and which parameter follows which rule.

#include "tutti/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

std::string refusal(const Optimizer::Rule& rule) {
  try {
    const Optimizer optimizer(rule);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "taken";
}

// promise: optimizer.h#Optimizer
TEST(Optimizer, NumbersThatMakeNoSenseAreRefused) {
  for (const double bad : {-1e-9, double{NAN}, double{INFINITY}}) {
    EXPECT_THAT(refusal(Sgd{.lr = bad}), HasSubstr("the learning rate must be finite"));
    EXPECT_THAT(refusal(Adam{.lr = bad}), HasSubstr("the learning rate must be finite"));
    EXPECT_THAT(refusal(AdamW{.lr = bad}), HasSubstr("the learning rate must be finite"));
    EXPECT_THAT(refusal(Adagrad{.lr = bad}), HasSubstr("the learning rate must be finite"));
    EXPECT_THAT(refusal(RmsProp{.lr = bad}), HasSubstr("the learning rate must be finite"));
    EXPECT_THAT(refusal(RmsProp{.weight_decay = bad}), HasSubstr("the weight decay must be"));
    EXPECT_THAT(refusal(RmsProp{.eps = bad}), HasSubstr("eps must be finite"));
    EXPECT_THAT(refusal(RmsProp{.momentum = bad}), HasSubstr("the momentum must be finite"));
    EXPECT_THAT(refusal(Lion{.lr = bad}), HasSubstr("the learning rate must be finite"));
    EXPECT_THAT(refusal(Lion{.weight_decay = bad}), HasSubstr("the weight decay must be finite"));
    EXPECT_THAT(refusal(Sgd{.weight_decay = bad}), HasSubstr("the weight decay must be finite"));
    EXPECT_THAT(refusal(Adam{.weight_decay = bad}), HasSubstr("the weight decay must be finite"));
    EXPECT_THAT(refusal(AdamW{.weight_decay = bad}), HasSubstr("the weight decay must be finite"));
    EXPECT_THAT(refusal(Adagrad{.weight_decay = bad}), HasSubstr("the weight decay must be"));
    EXPECT_THAT(refusal(Adagrad{.lr_decay = bad}), HasSubstr("lr_decay must be finite"));
    EXPECT_THAT(refusal(Adagrad{.initial_sum = bad}), HasSubstr("the sum must be finite"));
    EXPECT_THAT(refusal(Adam{.eps = bad}), HasSubstr("eps must be finite"));
    EXPECT_THAT(refusal(AdamW{.eps = bad}), HasSubstr("eps must be finite"));
    EXPECT_THAT(refusal(Adagrad{.eps = bad}), HasSubstr("eps must be finite"));
    EXPECT_THAT(refusal(Sgd{.momentum = bad}), HasSubstr("the momentum must be finite"));
  }
  for (const double bad : {-0.1, 1.0, double{NAN}}) {
    EXPECT_THAT(refusal(Adam{.beta1 = bad}), HasSubstr("betas must be in [0, 1)"));
    EXPECT_THAT(refusal(AdamW{.beta2 = bad}), HasSubstr("betas must be in [0, 1)"));
    EXPECT_THAT(refusal(RmsProp{.alpha = bad}), HasSubstr("alpha must be in [0, 1)"));
    EXPECT_THAT(refusal(Lion{.beta1 = bad}), HasSubstr("betas must be in [0, 1)"));
    EXPECT_THAT(refusal(Lion{.beta2 = bad}), HasSubstr("betas must be in [0, 1)"));
  }
  EXPECT_THAT(refusal(Sgd{.dampening = NAN}), HasSubstr("the dampening must be finite"));
  EXPECT_THAT(refusal(Sgd{.nesterov = true}), HasSubstr("Nesterov's form needs momentum"));
  EXPECT_THAT(refusal(Sgd{.momentum = 0.9, .dampening = 0.1, .nesterov = true}),
              HasSubstr("Nesterov's form needs momentum and no dampening"));
  EXPECT_THAT(refusal(AdamW{.decay = Decay::l2}), HasSubstr("with Decay::l2 it is Adam"));
  EXPECT_THAT(refusal(TorchOptim{}), HasSubstr("made by hand, not by torch_optimizer()"));
  EXPECT_EQ(refusal(Sgd{.lr = 0, .momentum = 0.9, .nesterov = true}), "taken");
  EXPECT_EQ(refusal(Adam{.beta1 = 0, .eps = 0}), "taken");
}

// promise: optimizer.h#group
TEST(Optimizer, OfAGroupIsJudgedAsItselfIs) {
  const auto any = [](const std::string&) { return true; };
  EXPECT_THROW(Optimizer(Sgd{}).group(any, Adam{.lr = -1}), InvalidArgument);
  EXPECT_THROW(Optimizer(Sgd{}).group(nullptr, Adam{}), InvalidArgument);
}

// promise: optimizer.h#group
TEST(Optimizer, AParameterFollowsTheFirstGroupThatHoldsItsName) {
  const auto ends_with = [](std::string end) {
    return [end](const std::string& name) { return name.ends_with(end); };
  };
  const Optimizer optimizer = Optimizer(Sgd{.lr = 1})
                                  .group(ends_with("bias"), Sgd{.lr = 2})
                                  .group(ends_with("a.bias"), Sgd{.lr = 3})
                                  .group(ends_with("weight"), Sgd{.lr = 4});
  const auto rate_of = [&](const char* name) { return std::get<Sgd>(optimizer.rule_of(name)).lr; };
  EXPECT_EQ(rate_of("a.bias"), 2);
  EXPECT_EQ(rate_of("a.weight"), 4);
  EXPECT_EQ(rate_of("scale"), 1);
}

// Plans and checkpoints compare the texts: each number shows.
// promise: optimizer.h#text_of
TEST(Optimizer, TextsTellEveryNumberApart) {
  EXPECT_EQ(text_of(Adam{.lr = 3e-4}),
            "Adam lr 0.0003 beta1 0.9 beta2 0.999 eps 1e-08 weight_decay 0");
  EXPECT_EQ(text_of(AdamW{.amsgrad = true}),
            "AdamW lr 0.001 beta1 0.9 beta2 0.999 eps 1e-08 weight_decay 0.01 times rate amsgrad");
  const std::vector<Optimizer::Rule> rules = {Sgd{},
                                              Sgd{.lr = 2},
                                              Sgd{.momentum = 0.5},
                                              Sgd{.dampening = 0.5},
                                              Sgd{.weight_decay = 0.5},
                                              Sgd{.decay = Decay::times_rate},
                                              Sgd{.decay = Decay::times_schedule},
                                              Sgd{.nesterov = true},
                                              Adam{},
                                              Adam{.lr = 2},
                                              Adam{.beta1 = 0.5},
                                              Adam{.beta2 = 0.5},
                                              Adam{.eps = 0.5},
                                              Adam{.weight_decay = 0.5},
                                              Adam{.amsgrad = true},
                                              AdamW{.amsgrad = true},
                                              AdamW{},
                                              AdamW{.lr = 2},
                                              AdamW{.beta1 = 0.5},
                                              AdamW{.beta2 = 0.5},
                                              AdamW{.eps = 0.5},
                                              AdamW{.weight_decay = 0.5},
                                              AdamW{.decay = Decay::times_schedule},
                                              Adagrad{},
                                              Adagrad{.lr = 2},
                                              Adagrad{.lr_decay = 0.5},
                                              Adagrad{.weight_decay = 0.5},
                                              Adagrad{.initial_sum = 0.5},
                                              Adagrad{.eps = 0.5},
                                              RmsProp{},
                                              RmsProp{.lr = 2},
                                              RmsProp{.alpha = 0.5},
                                              RmsProp{.eps = 0.5},
                                              RmsProp{.weight_decay = 0.5},
                                              RmsProp{.momentum = 0.5},
                                              RmsProp{.centered = true},
                                              Lion{},
                                              Lion{.lr = 2},
                                              Lion{.beta1 = 0.5},
                                              Lion{.beta2 = 0.5},
                                              Lion{.weight_decay = 0.5},
                                              TorchOptim{.text = "RMSprop lr 1", .rule = {}}};
  for (std::size_t a = 0; a < rules.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) EXPECT_NE(text_of(rules[a]), text_of(rules[b]));
}

}  // namespace
}  // namespace tutti::test
