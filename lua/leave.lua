-- Takes a relay's name out of the group of an outbox. Every relay process has a name of its own; without this they
-- would pile up there for as long as the sale's keys live.
--
-- One script, because an entry that became pending between a look and XGROUP DELCONSUMER would be pending at nobody.
--
-- KEYS[1]   the outbox stream of a sale
-- ARGV[1]   the relay group
-- ARGV[2]   the name of the consumer
--
-- Reply: 1 when the name is gone, 0 when entries are pending under it or there is no group

local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if pending.err or #pending > 0 then
  return 0
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
