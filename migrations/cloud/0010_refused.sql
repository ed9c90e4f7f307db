-- Which revoked certificates an external broker is known to refuse, by the word of an operator: until then a node that has
-- joined anew is not listened to there.

ALTER TABLE certificates ADD COLUMN refused INTEGER;  -- since when; NULL if nobody has said so
-- Nodes that have joined anew before this was asked are listened to, and stay so.
UPDATE certificates AS one SET refused = revoked WHERE revoked IS NOT NULL AND EXISTS (
  SELECT 1 FROM certificates AS other WHERE other.node = one.node AND other.revoked IS NULL
);
