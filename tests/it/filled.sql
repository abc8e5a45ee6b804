-- Some weeks of work of a small service, for plans that are made from statistics: an org that has half of all, and an owner in it;
-- what is busy or waits is rare.

CREATE TEMPORARY TABLE new AS
    SELECT g, g * 7919 % 10007 AS key, '_' || lpad(to_hex(g * 65537), 32, '0') AS id,
        CASE g % 2 WHEN 1 THEN 'o' ELSE 'o' || g % 20 END AS org,
        CASE g % 30 WHEN 1 THEN 'w' ELSE 'w' || g % 30 END AS owner,
        CASE WHEN g % 100 = 1 THEN 'running' WHEN g % 100 = 3 THEN 'awaiting_approval' WHEN g % 100 = 5 THEN 'errored'
            WHEN g % 4 = 0 THEN 'destroyed' WHEN g % 4 = 1 THEN 'stopped' ELSE 'idle' END AS status,
        1700000000000 + g * 60000 AS at
    FROM generate_series(1, 10000) AS g;

INSERT INTO agent_harness_sessions (session_key, id, org_id, owner_id, run_id, thread_id, harness_name, title, metadata,
        permission_mode, workspace_ref, turn_seconds, approval_seconds, settings, status, stop_cause, error_code, stopped_at,
        turn_ordinal, turn_count, queued_turns, pending_approval, pending_approval_count, resolved_approval_ids, started,
        input_tokens, output_tokens, usage_complete, lease_holder, lease_epoch, version, created_at, updated_at, last_active_at)
    SELECT key, 'ses' || id, org, owner, 'run' || g, CASE WHEN g % 3 = 0 THEN 't' || g % 100 END, 'h', 'title', '{}',
        'ask', '/workspace', 3600, 3600, '{}', status, CASE status WHEN 'stopped' THEN 'idle' END,
        CASE status WHEN 'errored' THEN 'x' END, CASE WHEN status IN ('stopped', 'errored', 'destroyed') THEN at END,
        3, 3, 0, CASE status WHEN 'awaiting_approval' THEN '{}' END, CASE status WHEN 'awaiting_approval' THEN 1 ELSE 0 END, '[]',
        1, 9, 9, 1, CASE WHEN g % 100 IN (1, 3) THEN 'rep' || g % 3 END, 1, 9, at, at, at
    FROM new;

INSERT INTO turns (session_key, ordinal, id, prompt, status, urgent, input_tokens, output_tokens, usage_complete, rehydrated,
        metadata, created_at, ended_at)
    SELECT key, ordinal, 'trn' || id || ordinal, '"x"', CASE WHEN busy THEN status ELSE 'completed' END, 0, 9, 9, 1, 0, '{}', at,
        CASE WHEN NOT busy THEN at END
    FROM new, generate_series(1, 3) AS ordinal,
        LATERAL (SELECT ordinal = 3 AND status IN ('running', 'awaiting_approval') AS busy) AS b;

INSERT INTO approvals (id, session_key, org_id, owner_id, session_id, run_id, turn_ordinal, turn_id, native_id, tool, title, kind,
        input, input_digest, options, status, decision, requested_at, expires_at, decided_at, delivered_at)
    SELECT 'apr' || id || n, key, org, owner, 'ses' || id, 'run' || g, 3, 'trn' || id || 3, 'n', 'tool', 'title', 'kind',
        '{}', 'digest', '[]', CASE WHEN waits THEN 'pending' ELSE 'approved' END, CASE WHEN NOT waits THEN 'approve' END, at,
        at + 60000, CASE WHEN NOT waits THEN at END, CASE WHEN NOT waits THEN at END
    FROM new, generate_series(1, 3) AS n, LATERAL (SELECT n = 3 AND status = 'awaiting_approval' AS waits) AS w;

INSERT INTO events (session_key, seq, turn, at, kind, data)
    SELECT key, seq, 1 + seq / 10, at, 'text.delta', '{"text":"some words of an agent"}'
    FROM new, generate_series(1, 20) AS seq ORDER BY seq, key;

INSERT INTO agent_files (session_key, digest, content, stored_at) SELECT key, 'sha256:' || id, '\x01', at FROM new;

INSERT INTO idempotency_keys (org_id, space, idem_key, fingerprint, session_id, created_at)
    SELECT org, 's', 'key' || g, 'f', 'ses' || id, at FROM new;

INSERT INTO api_keys (id, org_id, role, permissions, secret_hash, created_at)
    SELECT 'key' || id, org, 'service', '', '', at FROM new;

INSERT INTO event_tickets (ticket_hash, session_key, key_id, expires_at)
    SELECT decode(lpad(to_hex(g), 64, '0'), 'hex'), key, 'key', at FROM new;

INSERT INTO replicas (id, started_at, expires_at) SELECT 'rep' || g, 0, 1 << 60 FROM generate_series(0, 2) AS g;

ANALYZE;
