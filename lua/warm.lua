-- Fills a frozen sale from the ledger and, with the last part, lets it sell. The only way from the ledger to Redis.
--
-- Many claims come in several calls, each guarded: a holder that was overtaken writes nothing more.
--
-- KEYS  1 sale  2 claims  3 requests  4 outbox
-- ARGV  1 fence token       2 run id that `freeze` answered  3 '1' first part, else '0'  4 '1' last part, else '0'
--       5 generation        6 total         7 remaining      8 state                     9 max_quantity
--      10 starts_ms        11 ends_ms      12 revision      13 retention_ms             14 name of the relay group
--      15 n, number of claims in this part; then n pairs (user, claim); then pairs (user:key, request)
-- Reply {code}
--
-- code  name
--    0  REFUSED   another process, another token, not frozen, or orders still in the outbox: nothing written
--    1  WARMED    this part is written; after the last part the sale sells

local REFUSED, WARMED = 0, 1

local sale, claims, requests, outbox = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local stored = redis.call('HMGET', sale, 'fence', 'frozen')

if run_id ~= ARGV[2] or stored[1] ~= ARGV[1] or stored[2] ~= '1' or redis.call('XLEN', outbox) > 0 then
  return {REFUSED}
end

if ARGV[3] == '1' then
  redis.call('DEL', claims, requests)
end

local last_claim = 15 + 2 * tonumber(ARGV[15])
for at = 16, last_claim, 2 do
  redis.call('HSET', claims, ARGV[at], ARGV[at + 1])
end
for at = last_claim + 1, #ARGV, 2 do
  redis.call('HSET', requests, ARGV[at], ARGV[at + 1])
end

if ARGV[4] == '1' then
  redis.call('HSET', sale, 'generation', ARGV[5], 'home', run_id, 'total', ARGV[6], 'remaining', ARGV[7],
    'state', ARGV[8], 'max_quantity', ARGV[9], 'starts_ms', ARGV[10], 'ends_ms', ARGV[11], 'revision', ARGV[12],
    'epoch', '0', 'frozen', '0')
  -- At id 0, so that the group sees every order; made here, so that it exists before the first one.
  if redis.call('EXISTS', outbox) == 0 then
    redis.call('XGROUP', 'CREATE', outbox, ARGV[14], '0', 'MKSTREAM')
  end
end

-- A sale that is over already is warmed to be read, not to vanish.
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local expire_at = string.format('%.0f', math.max(tonumber(ARGV[11]), now_ms) + tonumber(ARGV[13]))
for _, key in ipairs(KEYS) do
  redis.call('PEXPIREAT', key, expire_at)
end
return {WARMED}
