-- What the fleet sends upstream beside reports: see docs/decisions/0010-leases.md for how Leases are kept.

-- Nodes that an operator has removed: they are told so when they come back.
CREATE TABLE removed_nodes (
  name TEXT PRIMARY KEY,
  at   TEXT NOT NULL                  -- RFC 3339 in UTC, whole seconds
) STRICT, WITHOUT ROWID;

-- How far the outbox of each node has taken effect: written in the transaction of the effects.
CREATE TABLE node_outboxes (
  node   TEXT PRIMARY KEY,
  outbox TEXT NOT NULL,               -- random, made with the outbox: numbers of another one mean nothing
  status INTEGER NOT NULL,            -- the last number of each lane, as 64 bits without a sign
  events INTEGER NOT NULL,
  bulk   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Of an Event: when it was changed last, Unix time in milliseconds. NULL for everything that lives for good, which is
-- spared the index.
ALTER TABLE objects ADD COLUMN changed INTEGER;
CREATE INDEX objects_by_change ON objects (changed) WHERE changed IS NOT NULL;
-- Nobody has noted when those of now were changed: they begin a new life.
UPDATE objects SET changed = unixepoch() * 1000
  WHERE resource_id IN (SELECT id FROM resources WHERE kind = 'Event' AND "group" IN ('', 'events.k8s.io'));
