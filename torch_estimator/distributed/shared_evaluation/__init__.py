"""An evaluation that several processes share: each runs its batches, and one of them adds up the scores of all."""
