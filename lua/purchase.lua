-- Sells units of one sale to a batch of purchases that arrived together: read, decide, then write.
--
-- Lua does not roll back, so nothing is written before everything has been decided. An empty batch is a probe.
--
-- KEYS  1 sale  2 claims  3 requests  4 outbox
-- ARGV  1 retention, milliseconds that the keys outlive the end of the sale
--       then six for each purchase: generation, order, user, quantity, request key or '', fingerprint or ''
-- Reply {cold or selling, generation, epoch, remaining, code, detail, code, detail, …}: a pair for each purchase
--
-- code  name           detail
--    0  COLD           ''            this Redis cannot prove that it may sell at that generation
--    1  ACCEPTED       ''            units taken, claim recorded, order in the outbox
--    2  REPLAYED       order|units   the Idempotency-Key was used before, for the same body
--    3  RETRIED        units         this very order had been accepted already: a node sent it once more
--    4  ALREADY        order         the buyer holds another order
--    5  SOLD_OUT       ''            no unit is left
--    6  NOT_ENOUGH     remaining     some are left, fewer than asked for
--    7  NOT_STARTED    starts_ms
--    8  ENDED          ''
--    9  PAUSED         ''
--   10  TOO_MANY       max_quantity  more units than one order may hold
--   11  KEY_REUSED     ''            the Idempotency-Key was used before, for another body

local COLD, ACCEPTED, REPLAYED, RETRIED, ALREADY, SOLD_OUT = 0, 1, 2, 3, 4, 5
local NOT_ENOUGH, NOT_STARTED, ENDED, PAUSED, TOO_MANY, KEY_REUSED = 6, 7, 8, 9, 10, 11

local sale, claims, requests, outbox = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local retention_ms = tonumber(ARGV[1])

-- Read: the sale.

local fields = redis.call('HMGET', sale, 'remaining', 'generation', 'home', 'frozen', 'state', 'max_quantity',
  'starts_ms', 'ends_ms', 'epoch')
local generation, home, frozen, state = fields[2], fields[3], fields[4], fields[5]
-- The field is tested, not the key: a freeze leaves its marker in the same hash.
local remaining = tonumber(fields[1] or nil)
local max_quantity, starts_ms, ends_ms = tonumber(fields[6] or 0), tonumber(fields[7] or 0), tonumber(fields[8] or 0)

-- The process that was warmed is known by its run id: a restart, a promotion or a restored copy has another.
local function is_home()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') == home
end

local selling = remaining ~= nil and frozen == '0' and is_home()
local reply = {selling and 1 or 0, tonumber(generation or 0), tonumber(fields[9] or 0), remaining or 0}
local purchases = (#ARGV - 1) / 6

if not selling then
  for _ = 1, purchases do
    reply[#reply + 1] = COLD
    reply[#reply + 1] = ''
  end
  return reply
end
if purchases == 0 then
  return reply
end

-- Read: what the buyers hold already.

local users, keys = {}, {}
for i = 1, purchases do
  local at = 1 + (i - 1) * 6
  users[i] = ARGV[at + 3]
  if ARGV[at + 5] ~= '' then
    keys[#keys + 1] = ARGV[at + 3] .. ':' .. ARGV[at + 5]
  end
end

local claimed = {}
for i, claim in ipairs(redis.call('HMGET', claims, unpack(users))) do
  claimed[users[i]] = claim or nil
end
local requested = {}
if #keys > 0 then
  for i, request in ipairs(redis.call('HMGET', requests, unpack(keys))) do
    requested[keys[i]] = request or nil
  end
end

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Joined as text, a large number would lose its digits.
local now_text = string.format('%.0f', now_ms)

-- Decide, one purchase after the other; `claimed` and `requested` also hold what this batch has granted so far.

local taken = 0
local new_claims, new_requests, new_orders = {}, {}, {}

local function decide(at)
  local order, user, quantity = ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  local key, fingerprint = ARGV[at + 5], ARGV[at + 6]

  if ARGV[at + 1] ~= generation then
    return COLD, ''
  end

  local request = key ~= '' and requested[user .. ':' .. key]
  if request then
    local first_order, first_fingerprint, units = string.match(request, '^([^|]+)|([^|]*)|(%d+)$')
    if first_fingerprint ~= fingerprint then
      return KEY_REUSED, ''
    end
    return REPLAYED, first_order .. '|' .. units
  end

  -- A retry gets its answer before the opening hours are checked: also after the end.
  local held_order, held_units
  if claimed[user] then
    held_order, held_units = string.match(claimed[user], '^([^|]+)|(%d+)|')
    if held_order == order then
      return RETRIED, held_units
    end
  end

  if state == 'ended' or now_ms >= ends_ms then
    return ENDED, ''
  end
  if state ~= 'open' then
    return PAUSED, ''
  end
  if now_ms < starts_ms then
    return NOT_STARTED, string.format('%.0f', starts_ms)
  end
  if held_order then
    return ALREADY, held_order
  end
  if quantity > max_quantity then
    return TOO_MANY, tostring(max_quantity)
  end
  if remaining == 0 then
    return SOLD_OUT, ''
  end
  if quantity > remaining then
    return NOT_ENOUGH, tostring(remaining)
  end

  remaining = remaining - quantity
  taken = taken + quantity
  claimed[user] = order .. '|' .. quantity .. '|' .. now_text
  new_claims[#new_claims + 1] = user
  new_claims[#new_claims + 1] = claimed[user]
  local entry = {'order', order, 'user', user, 'quantity', quantity, 'generation', generation,
    'accepted_ms', now_text}
  if key ~= '' then
    requested[user .. ':' .. key] = order .. '|' .. fingerprint .. '|' .. quantity
    new_requests[#new_requests + 1] = user .. ':' .. key
    new_requests[#new_requests + 1] = requested[user .. ':' .. key]
    entry[#entry + 1] = 'key'
    entry[#entry + 1] = key
    entry[#entry + 1] = 'fingerprint'
    entry[#entry + 1] = fingerprint
  end
  new_orders[#new_orders + 1] = entry
  return ACCEPTED, ''
end

for i = 1, purchases do
  local code, detail = decide(1 + (i - 1) * 6)
  reply[#reply + 1] = code
  reply[#reply + 1] = detail
end
reply[4] = remaining

-- Write. Losers have left nothing behind.

if taken == 0 then
  return reply
end

redis.call('HINCRBY', sale, 'remaining', -taken)
redis.call('HSET', claims, unpack(new_claims))
for _, entry in ipairs(new_orders) do
  redis.call('XADD', outbox, '*', unpack(entry))
end
local expire_at = string.format('%.0f', math.max(ends_ms, now_ms) + retention_ms)
redis.call('PEXPIREAT', claims, expire_at)
redis.call('PEXPIREAT', outbox, expire_at)
if #new_requests > 0 then
  redis.call('HSET', requests, unpack(new_requests))
  redis.call('PEXPIREAT', requests, expire_at)
end

return reply
