-- Several replicas on one database: where each is, when it was last heard of, whether it takes nothing new any more.
-- New columns have defaults, so that a replica of the version before this one can go on writing beside.

ALTER TABLE replicas ADD COLUMN instance TEXT NOT NULL DEFAULT '';
ALTER TABLE replicas ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE replicas ADD COLUMN renewed_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE replicas ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;

-- What all replicas must agree on, and how often one has joined.
CREATE TABLE cluster (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);

-- Decisions that no harness was told yet, also while another question of the same session waits on: hardly ever more than none.
CREATE INDEX approvals_owed ON approvals (session_key)
    WHERE status IN ('approved', 'denied', 'expired') AND dispatched_at IS NULL AND delivered_at IS NULL;
