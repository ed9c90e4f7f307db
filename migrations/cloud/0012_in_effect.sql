-- Which version of an object the programs on a node work with, where rules for files concern it: as the node said last.
-- Written in the transaction of the numbers of its outbox.

CREATE TABLE effects (
  node    TEXT NOT NULL,
  uid     TEXT NOT NULL,              -- of the object
  epoch   TEXT NOT NULL,              -- the database file of the node that has said it: of another one it says nothing
  version TEXT,                       -- in effect; NULL if none is
  wanted  TEXT NOT NULL,              -- tried last
  state   TEXT NOT NULL,              -- InEffect, NotInEffect, Conflict; others are of later versions
  rule    TEXT NOT NULL,
  message TEXT NOT NULL,
  since   INTEGER NOT NULL,           -- Unix time in microseconds, by the node's clock
  PRIMARY KEY (node, uid)
) STRICT, WITHOUT ROWID;
