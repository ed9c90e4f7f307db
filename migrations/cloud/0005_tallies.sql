-- Count and digest of each node's records, under the epoch of its store: what its Hello is compared with, without a look
-- at the records. NULL if they are not known; then they are counted from the records.
ALTER TABLE nodes ADD COLUMN held_count INTEGER;
ALTER TABLE nodes ADD COLUMN held_digest TEXT;   -- 32 hexadecimal digits

-- JSON: the database files that the node has had lately, each with the newest change that was ever recorded of it. A node
-- that calls more than that confirmed has been told so by a store of which this one is an older copy.
ALTER TABLE nodes ADD COLUMN epochs TEXT NOT NULL DEFAULT '[]';

-- Whether a new incarnation began with the opening: losses from before are what it began for.
ALTER TABLE openings ADD COLUMN renewed INTEGER NOT NULL DEFAULT 0;
