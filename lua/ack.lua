-- Removes outbox entries that Kafka has confirmed.
--
-- One script, because a relay that dies between XACK and XDEL would leave an entry that no group ever delivers
-- again: the outbox would never be empty and nothing would ever be settled.
--
-- KEYS[1]   the outbox stream of a sale
-- ARGV[1]   the relay group
-- ARGV[2…]  pairs: stream id, order id that was published under it ('' when the entry named none)
--
-- For each pair:
--   absent   the entry is gone: XACK only, so that it stops being pending
--   foreign  the entry belongs to another order (stream ids may repeat after a flush): left alone
--   removed  the entry is mine: XDEL, then XACK
--
-- Reply: { removed, absent, foreign, entries left in the stream }

local outbox, group = KEYS[1], ARGV[1]
local pairs_given = (#ARGV - 1) / 2
local ACKS_AT_ONCE = 1000 -- unpack has a limit of about 8000

local function order_of(fields)
  for i = 1, #fields, 2 do
    if fields[i] == 'order' then
      return fields[i + 1]
    end
  end
  return ''
end

-- The smallest id above `id`, or nil when its sequence is too long for Lua's numbers.
local function after(id)
  local ms, sequence = id:match('^(%d+)%-(%d+)$')
  if not ms or #sequence > 15 then
    return nil
  end
  return ms .. '-' .. string.format('%.0f', sequence + 1)
end

-- Whether the stream begins with exactly my entries, in my order.
local function head_is_mine()
  local head = redis.call('XRANGE', outbox, '-', ARGV[#ARGV - 1], 'COUNT', pairs_given + 1)
  if #head ~= pairs_given then
    return false
  end
  for i, entry in ipairs(head) do
    if entry[1] ~= ARGV[2 * i] or order_of(entry[2]) ~= ARGV[2 * i + 1] then
      return false
    end
  end
  return true
end

-- The usual case, several times cheaper than entry by entry: cut the head off.
local function remove_head(bound)
  redis.call('XTRIM', outbox, 'MINID', '=', bound)
  local ids = {}
  for i = 2, #ARGV, 2 do
    ids[#ids + 1] = ARGV[i]
    if #ids == ACKS_AT_ONCE then
      redis.call('XACK', outbox, group, unpack(ids))
      ids = {}
    end
  end
  if #ids > 0 then
    redis.call('XACK', outbox, group, unpack(ids))
  end
end

-- XACK of a key or group that does not exist answers 0, and so does XLEN of a missing key. Nothing in here can
-- fail half way, unless the key is no stream, and then the first command fails before anything was written.
local removed, absent, foreign = 0, 0, 0
local bound = pairs_given > 0 and after(ARGV[#ARGV - 1])
if bound and head_is_mine() then
  remove_head(bound)
  removed = pairs_given
else
  for i = 2, #ARGV, 2 do
    local id, order = ARGV[i], ARGV[i + 1]
    local entry = redis.call('XRANGE', outbox, id, id)[1]
    if not entry then
      redis.call('XACK', outbox, group, id)
      absent = absent + 1
    elseif order_of(entry[2]) ~= order then
      foreign = foreign + 1
    else
      redis.call('XDEL', outbox, id)
      redis.call('XACK', outbox, group, id)
      removed = removed + 1
    end
  end
end

return { removed, absent, foreign, redis.call('XLEN', outbox) }
