-- What an object was before each change: whoever watches a selection must learn that an object has left it.

ALTER TABLE events ADD COLUMN previous_version INTEGER;  -- NULL for an added object
-- Of a modified object: as it was before. Of a record that only tells of another version: that version as it was
-- before; all else is as in `object`. NULL for added and deleted objects: `object` says it all.
ALTER TABLE events ADD COLUMN previous TEXT;

-- Changes from before this migration do not say what was before them. Watches begin anew.
DELETE FROM events;
UPDATE meta SET history_start = last_version;
