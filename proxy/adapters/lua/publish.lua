-- Publish a replica's record and keep the right to scrape it: SharedLedger.publish.
--
-- KEYS   as account.lua
-- ARGV   1 now, 2 lease, 3 holder, 4 scrape lease (s), 5 record (JSON), 6 facts, 7 ends of the replica's grid, both as packed doubles
-- Returns  1, or 0 where another proxy has the right, or where who takes it over has not heard of the record that stands: its steps are
--          behind. The replica's clock never goes back.
--
-- A replica that nobody publishes any more is forgotten after KEPT_MS.

local KEPT_MS, BEHIND_STEPS_MAX = 3600000, 1
begin(ARGV[3])
local got = redis.call('HMGET', STATE, 'holder', 'held_until', 'number', 'ends', 'facts')
if got[1] and got[1] ~= ARGV[3] then
  local held_until, a = tonumber(got[2]) or 0, {}
  if got[1] ~= '' and NOW < held_until and held_until <= NOW + math.max(LEASE, tonumber(ARGV[4])) then return 0 end
  if not (got[5] and read_facts(a, got[5])) then damaged(STATE) end
  local steps_told, _, published_told = struct.unpack('<ddd', ARGV[6], 41)
  local behind = steps_told + BEHIND_STEPS_MAX < a.steps + a.rate * math.max(0, published_told - a.published)
  if behind and abs(NOW - a.published) <= LEASE then return 0 end
end
local number = next_number(got[3])
redis.call('HSET', STATE, 'record', ARGV[5], 'number', string.format('%.0f', number), 'holder', ARGV[3],
  'held_until', string.format('%.17g', NOW + tonumber(ARGV[4])), 'facts', ARGV[6], 'ends', ARGV[7])
if got[4] and got[4] ~= ARGV[7] then
  redis.call('HDEL', STATE, 'total')
  redis.call('DEL', ROWS, HEADS, HEADROWS)
end
for i = 2, 5 do redis.call('PEXPIRE', KEYS[i], KEPT_MS) end
return 1
