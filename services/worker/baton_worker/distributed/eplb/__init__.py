"""Expert parallel load balancing: replicas of busy experts, and experts that change their rank.

    routing of all tokens --> `ExpertLoad` --> `placement` --> `Rearrangement` --> new `ExpertMap`
         |                                                       weights travel between ranks
         +--> `dispatch`: which replica computes a visit

Every rank sees the routing of all tokens (`expert_parallel`), so all of them count the same loads
and compute the same placements: nothing is negotiated.
"""
