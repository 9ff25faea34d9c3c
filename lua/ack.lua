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
local removed, absent, foreign = 0, 0, 0

local function order_of(fields)
  for i = 1, #fields, 2 do
    if fields[i] == 'order' then
      return fields[i + 1]
    end
  end
  return ''
end

-- XACK of a key or group that does not exist answers 0; XLEN of a missing key is 0. Nothing in here can fail
-- half way, unless the key is no stream, and then the first command fails before anything was written.
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

return { removed, absent, foreign, redis.call('XLEN', outbox) }
