-- What must reach the cloud and is not confirmed yet. id: the lane in the upper 8 bits, below it the number in the
-- lane, so that a page of a lane is one run of rows. hash: 32 bits of lane and key, a small index; the text decides.
-- made: milliseconds since the boot that boot names. checksum: over all columns.
CREATE TABLE outbox (
  id INTEGER PRIMARY KEY,
  hash INTEGER NOT NULL,
  boot INTEGER NOT NULL,
  made INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  key TEXT NOT NULL,
  body TEXT NOT NULL
) STRICT;
CREATE INDEX outbox_by_key ON outbox (hash);
