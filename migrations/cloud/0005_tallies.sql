-- Count and digest of each node's records, under the epoch of its store: what its Hello is compared with, without a look
-- at the records. NULL if they are not known; then they are counted from the records.
ALTER TABLE nodes ADD COLUMN held_count INTEGER;
ALTER TABLE nodes ADD COLUMN held_digest TEXT;   -- 32 hexadecimal digits
