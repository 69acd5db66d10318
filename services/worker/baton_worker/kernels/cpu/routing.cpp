// The experts of each token, and their weights.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "team.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 11;  // scores, of which each takes some ten nanoseconds

enum Score : int64_t { kSoftmax = 0, kSigmoid = 1, kSqrtSoftplus = 2 };

}  // namespace

// Mirrored in kernels/moe/routing.py.
struct Routing {
    int64_t score, num_scores, top_k;
    int64_t num_groups, top_groups, group_width;  // of 1 group: all take part
    int64_t each_group;                           // every group has as many of the top_k
    int64_t by_logits;                            // compared in place of scores
    int64_t norm;                                 // 1 or 2; 0: weights are not divided
    double norm_floor, scale;
};

namespace {

// In double and rounded once: the same as the twin in torch where that goes through double.
void score(const Routing& how, const float* logits, float* scores) {
    const int64_t size = how.num_scores;
    if (how.score == kSoftmax) {
        const double most = *std::max_element(logits, logits + size);
        double total = 0;
        for (int64_t i = 0; i < size; i++) total += std::exp(logits[i] - most);
        for (int64_t i = 0; i < size; i++)
            scores[i] = static_cast<float>(std::exp(logits[i] - most) / total);
    } else if (how.score == kSigmoid) {
        for (int64_t i = 0; i < size; i++)
            scores[i] = static_cast<float>(1 / (1 + std::exp(-double{logits[i]})));
    } else {
        for (int64_t i = 0; i < size; i++) {
            const double x = logits[i];
            const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
            scores[i] = static_cast<float>(std::sqrt(softplus));
        }
    }
}

// Numbers of the greatest values, of those that are not taken yet, greatest first; the lowest number
// first among equals.
void take_greatest(const float* values, int64_t size, int64_t count, char* taken, int64_t* numbers) {
    for (int64_t k = 0; k < count; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < size; i++) {
            if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
        }
        taken[best] = 1;
        numbers[k] = best;
    }
}

// Memory of one token.
struct Room {
    std::vector<float> scores, choice, worth;
    std::vector<char> taken, group_taken;
    std::vector<int64_t> numbers;

    explicit Room(const Routing& how)
        : scores(how.num_scores), choice(how.num_scores), worth(how.num_groups),
          taken(how.num_scores), group_taken(how.num_groups),
          numbers(std::max(how.num_scores, how.num_groups)) {}
};

// Puts every expert outside the best groups at -infinity. A group is worth the sum of its greatest.
void keep_best_groups(const Routing& how, Room& room) {
    const int64_t size = how.num_scores / how.num_groups;
    for (int64_t group = 0; group < how.num_groups; group++) {
        const float* choice = room.choice.data() + group * size;
        std::fill_n(room.taken.begin(), size, 0);
        take_greatest(choice, size, how.group_width, room.taken.data(), room.numbers.data());
        room.worth[group] = 0;
        for (int64_t i = 0; i < how.group_width; i++) room.worth[group] += choice[room.numbers[i]];
    }
    std::fill(room.group_taken.begin(), room.group_taken.end(), 0);
    take_greatest(room.worth.data(), how.num_groups, how.top_groups, room.group_taken.data(),
                  room.numbers.data());
    for (int64_t i = 0; i < how.num_scores; i++) {
        if (!room.group_taken[i / size]) room.choice[i] = -std::numeric_limits<float>::infinity();
    }
}

void choose(const Routing& how, Room& room, int64_t* experts) {
    const int64_t groups = how.each_group ? how.num_groups : 1;
    const int64_t size = how.num_scores / groups, count = how.top_k / groups;
    if (!how.each_group && how.num_groups > 1) keep_best_groups(how, room);
    std::fill(room.taken.begin(), room.taken.end(), 0);
    for (int64_t group = 0; group < groups; group++) {
        int64_t* some = experts + group * count;
        take_greatest(room.choice.data() + group * size, size, count,
                      room.taken.data() + group * size, some);
        for (int64_t k = 0; k < count; k++) some[k] += group * size;
    }
}

void weigh(const Routing& how, const float* scores, const int64_t* experts, float* weights) {
    double total = 0;
    for (int64_t k = 0; k < how.top_k; k++) {
        const double weight = weights[k] = scores[experts[k]];
        total += how.norm == 2 ? weight * weight : weight;
    }
    const double norm = how.norm == 2 ? std::sqrt(total) : total;
    const float divisor = static_cast<float>(std::max(norm, how.norm_floor));
    for (int64_t k = 0; k < how.top_k; k++) {
        if (how.norm) weights[k] /= divisor;
        weights[k] *= static_cast<float>(how.scale);
    }
}

}  // namespace
}  // namespace baton

// logits [tokens, num_scores]; correction [num_scores] or null, added for the choice alone;
// experts and weights [tokens, top_k].
extern "C" void baton_route(const baton::Routing* how, const float* logits, const float* correction,
                            int64_t tokens, int64_t* experts, float* weights) {
    const int64_t size = how->num_scores;
    baton::share(tokens * size >= baton::kWorthThreads, tokens, [&](int64_t begin, int64_t end) {
        baton::Room room(*how);
        for (int64_t t = begin; t < end; t++) {
            baton::score(*how, logits + t * size, room.scores.data());
            const float* compared = how->by_logits ? logits + t * size : room.scores.data();
            for (int64_t i = 0; i < size; i++)
                room.choice[i] = compared[i] + (correction ? correction[i] : 0.0f);
            int64_t* chosen = experts + t * how->top_k;
            baton::choose(*how, room, chosen);
            baton::weigh(*how, room.scores.data(), chosen, weights + t * how->top_k);
        }
    });
}
