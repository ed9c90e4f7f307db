-- Labels that tokens give to the nodes that join with them, and the names under which nodes have joined.

ALTER TABLE tokens ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';  -- as JSON text

-- A name stays here when its certificates have ended or are revoked: it is not free again by itself.
CREATE TABLE members (
  name   TEXT PRIMARY KEY,
  labels TEXT NOT NULL                -- those of the token that it joined with last, as JSON text
) STRICT, WITHOUT ROWID;
INSERT INTO members (name, labels) SELECT DISTINCT node, '{}' FROM certificates;
